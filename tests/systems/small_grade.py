"""One small GRADE set-up that the tests share, so that its step is compiled once a session.

Compiled without optimisation: the tests run few steps, and compiling is what takes the time.
"""

import functools

import fakes
import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import memory as memory_lib
from gradejax.coordination.depth import MANAGER, POOL, allowed_agents, with_orchestrator
from gradejax.systems.grade.learner import StepInput, fresh_state, train_step
from gradejax.systems.grade.network import Network, question
from gradejax.systems.grade.policy import Rollout

ROWS, LENGTH = 12, 24  # packed rows and their length: one shape for all batches
Q = 12
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
SHAPE = fakes.shape()
N = SHAPE.pool.num_agents + 1
CALIBRATION = calibration_lib.identity(N, SHAPE.config.d)


def quick(f, **options):
    """jit for tests: compiled fast, running slowly."""
    return jax.jit(f, compiler_options=QUICK, **options)


def batch(seed=0, *, missing=0.1, dtype=np.float32, **options):
    return fakes.batch(
        Q, seed=seed, ids=np.arange(Q) + 100 * seed, rows=ROWS, row_length=LENGTH,
        missing=missing, dtype=dtype, **options,
    )  # fmt: skip


@functools.cache
def params(shape=SHAPE):
    make = quick(lambda seed: fakes.params(shape, batch(dtype=shape.dtype), seed=seed))
    return jax.device_get(make(0))


def perturbed(tree, seed=0, scale=0.3):
    """Every parameter moved, so that nothing is 0 only because it starts there."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + (scale * rng.normal(size=x.shape)).astype(x.dtype), tree)


def empty_memory(shape=SHAPE):
    return memory_lib.empty(shape.config.memory_slots, shape.config.d, shape.dtype)


def full_memory(seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    s, d = shape.config.memory_slots, shape.config.d
    return memory_lib.Memory(
        keys=rng.normal(size=(s, d)).astype(shape.dtype),
        values=rng.normal(size=(s, d)).astype(shape.dtype),
        ids=np.arange(s, dtype=np.int32) - 2, count=np.int32(3),
    )  # fmt: skip


TRACES = {"count": 0}


def _counted(state, inputs):
    TRACES["count"] += 1
    return train_step(SHAPE, state, inputs)


STEP = quick(_counted, donate_argnums=0)


@functools.cache
def _fresh(shape):
    calibration = calibration_lib.identity(N, shape.config.d, shape.dtype)
    return quick(lambda tree, seed: fresh_state(shape, tree, calibration, jax.random.key(seed)))


def state(seed=1, tree=None, shape=SHAPE):
    """A state at step 0 in buffers of its own: steps donate them."""
    tree = params(shape) if tree is None else tree
    return _fresh(shape)(jax.tree.map(np.array, tree), seed)


@quick
def _logits(tree, batch, memory, calibration):
    return question(SHAPE, tree, batch, memory, calibration, own_slots=False).logits


def logits(batch, tree=None, memory=None):
    return _logits(params() if tree is None else tree, batch,
                   empty_memory() if memory is None else memory, CALIBRATION)  # fmt: skip


def inputs(batch):
    """With π_ref the policy of ``params()``."""
    return StepInput(batch, logits(batch))


@quick
def combined(tree, batch, memory, calibration, rollout):
    found = question(SHAPE, tree, batch, memory, calibration, own_slots=False)
    return Network(SHAPE).apply(tree.network, found, batch.records, rollout, method="combine")


def random_rollout(records, g=SHAPE.config.group_size, seed=0) -> Rollout:
    """Rollouts of all depths that the masks allow, drawn without any gate (NumPy)."""
    rng = np.random.default_rng(seed)
    pool = SHAPE.pool
    available = np.asarray(records.available)
    q, a = available.shape[0], pool.num_agents
    depth = np.tile(np.arange(g) % 3, (q, 1))
    somebody, alone = available[:, :-1].any(1), available[:, -1]
    depth = np.where(somebody[:, None], depth, 0)
    depth = np.where((depth == 0) & ~alone[:, None], np.where(somebody, 2, -1)[:, None], depth)
    owners = np.asarray(pool.manager_of)
    there = np.stack([(available[:, :-1] & (owners == m)).any(1) for m in range(2)], 1)
    manager = np.where(there.all(1)[:, None], rng.integers(0, 2, (q, g)), there.argmax(1)[:, None])
    manager = np.where(depth == MANAGER, manager, -1).astype(np.int32)
    allowed = np.asarray(
        allowed_agents(jnp.asarray(depth), jnp.asarray(manager), jnp.asarray(available)[:, None],
                       pool.manager_of, pool.num_managers)
    )  # fmt: skip
    pick = lambda mask: _nonempty(rng, mask)  # noqa: E731
    asked = pick(allowed)
    deep = asked & (depth == POOL)[..., None]
    pairs = deep[..., :, None] & deep[..., None, :] & ~np.eye(a, dtype=bool)
    kept = np.where((depth == POOL)[..., None], pick(deep), asked)
    return Rollout(
        depth=depth.astype(np.int32), manager=manager, asked=asked, order=None,
        edges=pairs & (rng.random(pairs.shape) < 0.5), relaxed=None,
        members=np.asarray(with_orchestrator(jnp.asarray(depth), jnp.asarray(asked))),
        kept=np.asarray(with_orchestrator(jnp.asarray(depth), jnp.asarray(kept))),
    )  # fmt: skip


def _nonempty(rng, mask):
    some = mask & (rng.random(mask.shape) < 0.5)
    first = mask & (np.cumsum(mask, -1) == 1)
    return np.where(some.any(-1, keepdims=True), some, first)
