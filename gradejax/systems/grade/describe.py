"""What a checkpoint must say for a system to be rebuilt from it, as JSON and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination import calibration as calibration_lib
from gradejax.models.encoder import pack_trunk
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.fit import blank_rollout
from gradejax.systems.grade.learner import TrainState, fresh_state
from gradejax.systems.grade.network import Shape, init_params
from gradejax.types import NO_ANSWER, Batch, Pool, Records

LAYOUT = 2  # of the checkpoint's tree; raised when it changes


def describe(shape: Shape, *, pool_entries: Mapping[str, Any], task: Mapping[str, Any],
             families, seed: int) -> dict[str, Any]:  # fmt: skip
    """JSON facts stored beside every checkpoint."""
    return {
        "system": "grade",
        "layout": LAYOUT,
        "grade": dataclasses.asdict(shape.config),
        "pool": dict(pool_entries),
        "task": dict(task),
        "families": list(families),
        "seed": seed,
    }


def example_batch(shape: Shape, q: int = 2) -> Batch:
    """An empty batch of the right shapes: nobody available, nothing asked."""
    pool = shape.pool
    n = pool.num_agents + 1
    records = Records(
        ids=np.arange(q, dtype=np.int32), valid=np.ones((q,), bool),
        family=np.zeros((q,), np.int32),
        features=tuple(np.zeros((q, w), np.float32) for w in pool.widths),
        available=np.zeros((q, n), bool), answers=np.full((q, n), NO_ANSWER, np.int32),
        candidates=np.zeros((q, n, pool.candidate_width), np.float32),
        candidate_mask=np.zeros((q, n), bool), choices=np.zeros((q,), bool),
        gold=np.zeros((q, n), bool), tokens=np.zeros((q, n), np.int32),
    )  # fmt: skip
    states = [np.zeros((1, pool.trunk_width), np.float32)] * q
    return Batch(records, pack_trunk(states, 1, 8))


def abstract_state(shape: Shape, trunk_params) -> TrainState:
    """Shapes and dtypes of the training state, nothing computed.

    Args:
      shape: static.
      trunk_params: tree of the trunk (arrays or ShapeDtypeStructs).
    """
    batch = example_batch(shape)

    def make(trunk):
        params = init_params(
            shape, jax.random.key(0), trunk, batch, blank_rollout(shape, 2)
        )
        statistics = calibration_lib.identity(
            shape.pool.num_agents + 1, shape.config.d, shape.dtype
        )
        return fresh_state(shape, params, statistics, jax.random.key(0))

    return jax.eval_shape(make, trunk_params)


def shape_of(meta: Mapping[str, Any], pool: Pool, trunk, dtype=jnp.float32) -> Shape:
    """The static facts behind stored JSON.

    Raises:
      ValueError: a layout this version does not read.
    """
    if meta.get("layout") != LAYOUT:
        raise ValueError(
            f"the checkpoint has layout {meta.get('layout')}; this version reads {LAYOUT}"
        )
    return Shape(GradeConfig(**meta["grade"]), pool, trunk, dtype)
