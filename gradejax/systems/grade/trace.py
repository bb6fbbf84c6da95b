"""What a trained GRADE gives back, and what it keeps for swaps: plain values, no computation."""

import dataclasses
from typing import NamedTuple

import numpy as np

from gradejax.tasks.base import Example
from gradejax.types import Batch

NOBODY = -1  # depth of a question that nobody could be asked


@dataclasses.dataclass(frozen=True)
class Trace:
    """How an answer came about.

    Attributes:
      depth: 0 the orchestrator alone, 1 one manager's sub-pool, 2 the pool; NOBODY when no seat
        was left that could be asked.
      manager: its name at depth 1, else None.
      asked: names of the agents whose answer was asked for ("M0" at depth 0).
      read: (reader, read) pairs.
      kept: names of the agents that were kept.
      votes: name → canonical answer (None: no answer) of each agent asked.
      named_by: which of those asked named the answer; empty when there is none, or, where there are
        options, when the gates chose one that nobody named.
      failed: name → why its call failed (also: the question is too long for it), when a fallback
        was needed.
      tokens: prompt and reply tokens of all calls made.
      active_params: parameters evaluated, M0 included; an agent counts each time it is called.
      money: what the calls cost at APIs, in the currency of the prices.
      seconds: of the whole batch, divided by its questions.
    """

    depth: int
    manager: str | None
    asked: tuple[str, ...]
    read: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]
    votes: dict[str, str | None]
    named_by: tuple[str, ...]
    failed: dict[str, str]
    tokens: int
    active_params: int
    money: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """text: the canonical answer, None for none or when abstaining; probability: p_Θ of the answer
    (kept when abstaining); abstained: it fell below ``abstain_below``, or nobody could be asked;
    trace."""

    text: str | None
    probability: float
    abstained: bool
    trace: Trace


@dataclasses.dataclass(frozen=True)
class Anchors:
    """Training questions on which experts can be compared, with each seat's features.

    questions: as asked; features: [n, D_a] per seat; available: [n, A+1].
    """

    questions: tuple[Example, ...]
    features: tuple[np.ndarray, ...]
    available: np.ndarray


class Features(NamedTuple):
    """What every seat made of Q questions, as ``infer`` takes it.

    Attributes:
      batch: Q rows.
      candidates: for each question the texts that ``Inference.answer`` indexes.
    """

    batch: Batch
    candidates: tuple[tuple[str, ...], ...]
