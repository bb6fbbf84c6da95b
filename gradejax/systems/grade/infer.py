"""Decisions and answers without sampling, from features: the jitted inference functions."""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from gradejax.coordination import combination
from gradejax.systems.grade import policy
from gradejax.systems.grade.learner import row_keys
from gradejax.systems.grade.network import GateLogits, Network, Params, Shape, question
from gradejax.systems.grade.objective import cost_share
from gradejax.systems.grade.policy import Rollout
from gradejax.types import Array, Batch

DECISIONS = ("threshold", "mode", "sampled")


@flax.struct.dataclass
class Inference:
    """What the system decided on Q questions, one rollout each.

    Attributes:
      answer: [Q] int32, candidate index or −1.
      probability: [Q], p_Θ of the answer; 0 without one.
      asked: [Q, A+1] bool: S, or M0 alone at depth 0.
      depth: [Q] int32. manager: [Q] int32, −1 but at depth 1.
      read: [Q, A, A] bool. kept: [Q, A+1] bool.
      weights: [Q, A+1], w_a of the kept.
      cost: [Q], share of the pool's parameters evaluated.
      logits: GateLogits.
    """

    answer: Array
    probability: Array
    asked: Array
    depth: Array
    manager: Array
    read: Array
    kept: Array
    weights: Array
    cost: Array
    logits: GateLogits


def _first(rollout: Rollout) -> Rollout:
    return jax.tree.map(lambda x: x[:, 0], rollout)


@functools.partial(jax.jit, static_argnames=("shape", "decision", "own_slots"))
def infer(shape: Shape, params: Params, batch: Batch, memory, calibration, *,
          decision: str = "threshold", key=None, own_slots: bool = True) -> Inference:  # fmt: skip
    """From features to decisions and answers.

    Gates see availability: an agent whose record is missing is never asked. What agents that were
    not asked said has no influence.

    Args:
      shape: static.
      params: trained.
      batch: Q questions; features of agents that will not be asked may be missing.
      memory: frozen at evaluation.
      calibration: statistics.
      decision: "threshold" (τ^A, τ^P: the paper's), "mode" (the likeliest of the sampled policy)
        or "sampled" (needs a key).
      key: base key of "sampled"; a question's draw depends on it and on its row id.
      own_slots: whether a question may read its own memory slot.
    """
    if decision == "sampled" and key is None:
        raise ValueError("decision='sampled' draws: pass key=jax.random.key(seed)")
    if decision not in DECISIONS:
        raise ValueError(f"unknown decision {decision!r}; choose from {', '.join(DECISIONS)}")
    config, records = shape.config, batch.records
    state = question(shape, params, batch, memory, calibration, own_slots=own_slots)
    if decision == "sampled":
        keys = row_keys(key, jnp.zeros((), jnp.int32), records.ids)
        rollout = policy.sample(config, shape.pool, keys, state.logits, records.available, 1)
    else:
        tau = 0.5 if decision == "mode" else config.prune_threshold
        rollout = policy.decide(config, shape.pool, state.logits, records.available,
                                prune_threshold=tau)  # fmt: skip
    combined = Network(shape).apply(params.network, state, records, rollout, method="combine")
    answer = combination.answer(combined, records.answers, records.choices, rollout.kept)[:, 0]
    log_probs = combination.log_probs(combined)[:, 0]
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(answer, 0)[:, None], axis=-1)[:, 0]
    one = _first(rollout)
    return Inference(
        answer=answer,
        probability=jnp.where(answer >= 0, jnp.exp(jnp.where(answer >= 0, chosen, 0.0)), 0.0),
        asked=one.members,
        depth=one.depth,
        manager=one.manager,
        read=one.edges,
        kept=one.kept,
        weights=combined.weights[:, 0],
        cost=cost_share(shape, records, rollout.members)[:, 0],
        logits=state.logits,
    )


@functools.partial(jax.jit, static_argnames=("shape", "own_slots"))
def plan(shape: Shape, params: Params, batch: Batch, memory, calibration, *,
         own_slots: bool = True) -> Rollout:  # fmt: skip
    """Depth, manager and S of each question [Q, ...]: they need the question only, no expert.

    ``available`` in the batch says who *can* be asked; the other decisions in the result are
    meaningless until the messages are there.
    """
    state = question(shape, params, batch, memory, calibration, own_slots=own_slots)
    return _first(
        policy.decide(shape.config, shape.pool, state.logits, batch.records.available)
    )


@functools.partial(jax.jit, static_argnames=("shape", "own_slots"))
def gate_logits(shape: Shape, params: Params, batch: Batch, memory, calibration, *,
                own_slots: bool = False) -> GateLogits:  # fmt: skip
    """The gates' logits alone; π_ref's are cached with this at step 0."""
    return question(shape, params, batch, memory, calibration, own_slots=own_slots).logits
