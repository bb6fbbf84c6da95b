"""Rewards from their parts. Missing is a state of its own: never 0, never NaN."""

from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp

from gradejax import ops

Array = jax.Array


@flax.struct.dataclass
class CombinedReward:
    """A weighted sum of reward parts."""

    total: Array  # [N] float, 0 where nothing could be scored
    scored: Array  # [N] bool, the mask for group statistics and loss
    missing: dict[str, Array]  # part -> [] int32, rows in which it is missing
    unscored: Array  # [] int32, rows left out altogether


@flax.struct.dataclass
class GradeReward:
    """GRADE's reward and its weighted parts, each [N] float; ``total`` is their sum."""

    total: Array
    correctness: Array
    system: Array
    agents: Array
    cost: Array


def combine_parts(parts: Mapping[str, Array], weights: Mapping[str, float], valid=None,
                  present: Mapping[str, Array] | None = None) -> CombinedReward:
    """Sums weighted reward parts, leaving out those that could not be computed.

    A part is missing in a row where it is NaN or where ``present`` says so. Missing parts are left
    out of the plain sum and the other weights are *not* renormalised [choice]; a row in which every
    part is missing is not scored: it must not enter group statistics or the loss as a 0.

    Args:
      parts: name -> [N] float.
      weights: name -> weight, the same names.
      valid: optional [N] bool, False for padding rows (neither scored nor counted as missing).
      present: optional name -> [N] bool for some or all parts.
    """
    if not parts or set(parts) != set(weights):
        raise ValueError(
            f"parts and weights must have the same names; got {sorted(parts)}, {sorted(weights)}"
        )
    present = present or {}
    if not set(present) <= set(parts):
        raise ValueError(f"present names unknown parts {sorted(set(present) - set(parts))}; "
                         f"choose from {sorted(parts)}")
    values = {name: ops.as_float(part) for name, part in parts.items()}
    shapes = {value.shape for value in values.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"every part must be [N]; got {sorted(map(str, shapes))}")
    shape = next(iter(shapes))
    valid = jnp.ones(shape, bool) if valid is None else jnp.asarray(valid, bool)
    total = jnp.zeros(shape, jnp.result_type(*values.values()))
    scored, missing = jnp.zeros(shape, bool), {}
    for name in sorted(values):
        known = valid & ~jnp.isnan(values[name])
        if name in present:
            known = known & jnp.asarray(present[name], bool)
        total = total + weights[name] * jnp.where(known, values[name], 0.0)
        scored = scored | known
        missing[name] = (valid & ~known).sum(dtype=jnp.int32)
    return CombinedReward(
        total=total, scored=scored, missing=missing,
        unscored=(valid & ~scored).sum(dtype=jnp.int32),
    )


def grade_reward(correct, system_log_prob, agent_log_probs, agents, cost, gold_present, *,
                 system_weight: float = 0.10, agent_weight: float = 0.05,
                 cost_weight: float = 0.05, correct_weight: float = 2.0,
                 floor: float = -5.0) -> GradeReward:
    """R = 2·1[ŷ = y*] + λ_m log p_Θ(y*|x, o) + λ_a mean_{a ∈ S'} log p_a(y*|x) − λ_c c(o).

    GRADE (arXiv 2607.10836), reward equation and its hyperparameters. Log-probabilities are
    clamped from below at ``floor``; with the gold answer absent from the candidates they *are* the
    floor. S' is the caller's [choice]: the agents kept; at depth 1 those assigned; at depth 0 the
    orchestrator, since an empty S' would spare depth 0 the (negative) agent term.

    Args:
      correct: [N] bool. system_log_prob: [N] log p_Θ(y*), <= 0.
      agent_log_probs: [N, A] log p_a(y*), <= 0; entries outside S' may hold anything.
      agents: [N, A] bool, S'. A row without agents (padding) has an agent part of 0.
      cost: [N] c(o), in units of the whole pool's.
      gold_present: [N] bool, y* is among the candidates.

    Returns:
      GradeReward, every field [N], no gradient.
    """
    system = ops.as_float(system_log_prob)
    each = ops.as_float(agent_log_probs)
    gold = jnp.asarray(gold_present, bool)
    agents = jnp.asarray(agents, bool)
    if each.ndim != 2 or agents.shape != each.shape or system.shape != each.shape[:1]:
        raise ValueError(
            "system_log_prob must be [N], agent_log_probs and agents [N, A]; got "
            f"{system.shape}, {each.shape}, {agents.shape}"
        )
    system = jnp.where(gold, jnp.maximum(system, floor), floor)
    each = jnp.where(gold[:, None], jnp.maximum(each, floor), floor)
    parts = {
        "correctness": correct_weight * jnp.asarray(correct, bool).astype(system.dtype),
        "system": system_weight * system,
        "agents": agent_weight * ops.masked_mean(each, agents, axis=1),
        "cost": -cost_weight * ops.as_float(cost),
    }
    parts = jax.tree.map(jax.lax.stop_gradient, parts)
    total = parts["correctness"] + parts["system"] + parts["agents"] + parts["cost"]
    return GradeReward(total=total, **parts)
