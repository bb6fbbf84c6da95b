"""The trainable layer of GRADE (arXiv 2607.10836) as pure functions and small modules.

Distributions are modules of functions with one vocabulary (``sample``, ``log_prob``, ``kl``,
``decisions``, ``mode`` or ``threshold``, ``takes_part``); parametric parts are flax.linen modules
that turn question state and messages into logits. Nothing here knows a tokenizer, a config or a
reward.
"""

from gradejax.coordination import (
    assignment,
    calibration,
    categorical,
    combination,
    cross_read,
    depth,
    managers,
    memory,
    plackett_luce,
    prune,
    subset,
    swap,
)
from gradejax.coordination.adapters import Adapters
from gradejax.coordination.assignment import AssignmentGate, manager_logits
from gradejax.coordination.calibration import Calibrate, Calibration
from gradejax.coordination.combination import Combination, Combined
from gradejax.coordination.cross_read import Edges, ReadGate
from gradejax.coordination.depth import DepthGate
from gradejax.coordination.managers import Managers, membership
from gradejax.coordination.memory import Memory, MemoryRead
from gradejax.coordination.prune import PruneGate
from gradejax.coordination.subset import Decisions

__all__ = [
    "Adapters",
    "AssignmentGate",
    "Calibrate",
    "Calibration",
    "Combination",
    "Combined",
    "Decisions",
    "DepthGate",
    "Edges",
    "Managers",
    "Memory",
    "MemoryRead",
    "PruneGate",
    "ReadGate",
    "assignment",
    "calibration",
    "categorical",
    "combination",
    "cross_read",
    "depth",
    "manager_logits",
    "managers",
    "membership",
    "memory",
    "plackett_luce",
    "prune",
    "subset",
    "swap",
]
