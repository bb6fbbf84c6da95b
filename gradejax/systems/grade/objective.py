"""GRADE's reward and loss on recorded rollouts.

Sums over local rollouts are divided by *global* counts, so that gradients summed over devices are
those of the whole batch however it was cut (design section 11).
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax import ops
from gradejax.coordination import categorical, combination, cross_read, subset
from gradejax.coordination.depth import NUM_DEPTHS, allowed_depths
from gradejax.objectives.rewards import GradeReward, grade_reward
from gradejax.objectives.surrogates import SurrogateStats, clipped_surrogate, log_ratios
from gradejax.systems.grade import policy
from gradejax.systems.grade.network import GateLogits, Network, Params, Question, Shape, question
from gradejax.types import Array, Batch, Records


@flax.struct.dataclass
class Outcome:
    """What the rollouts came to, [Q, G] each: answer (candidate or −1), correct, cost, reward."""

    answer: Array
    correct: Array
    cost: Array
    reward: GradeReward


def with_m0(members) -> Array:
    """Who is paid for: those asked, and M0 (the last column) always."""
    last = np.arange(members.shape[-1]) == members.shape[-1] - 1
    return members | last.reshape((1,) * (members.ndim - 1) + (-1,))


def cost_share(shape: Shape, records: Records, members) -> Array:
    """c(o) [Q, G] in (0, 1]: what was evaluated over what asking everyone would evaluate.

    M0 is always evaluated. Parameters, or parameters × tokens of the calls [choice].

    Args:
      shape: static.
      records: Q questions.
      members: [Q, G, A+1] bool, those asked (M0 at depth 0).
    """
    price = jnp.asarray(shape.pool.params, jnp.float32).astype(shape.dtype)
    price = jnp.broadcast_to(price[None], records.available.shape)
    if shape.config.cost == "token_params":
        price = price * records.tokens.astype(price.dtype)
    everyone = price.sum(-1)[:, None]
    paid = jnp.where(with_m0(members), price[:, None], 0.0).sum(-1)
    return ops.safe_divide(paid, jnp.broadcast_to(everyone, paid.shape))


def outcome(shape: Shape, records: Records, rollout, combined: combination.Combined) -> Outcome:
    """Answer and reward of each rollout; no gradient.

    The agents of λ_a are K: those kept at depth 2, S at depth 1, M0 at depth 0 (an empty set there
    would subsidise it).
    """
    config, (q, g) = shape.config, rollout.depth.shape
    answer = combination.answer(combined, records.answers, records.choices, rollout.kept)
    correct = combination.is_right(answer, records.gold, records.candidate_mask.shape[1])
    system, present = combination.gold_log_prob(
        combination.log_probs(combined), records.gold, combined.candidates
    )
    agents, _ = combination.gold_log_prob(
        combination.agent_log_probs(combined), records.gold, combined.candidates
    )
    cost = cost_share(shape, records, rollout.members)
    flat = lambda x: x.reshape((q * g, *x.shape[2:]))  # noqa: E731
    reward = grade_reward(
        flat(correct), flat(system), flat(agents), flat(rollout.kept), flat(cost), flat(present),
        system_weight=config.system_weight, agent_weight=config.agent_weight,
        cost_weight=config.cost_weight, correct_weight=config.correct_weight,
        floor=config.log_prob_floor,
    )  # fmt: skip
    return Outcome(answer, correct, cost, jax.tree.map(lambda x: x.reshape(q, g), reward))


@flax.struct.dataclass
class Counts:
    """Global numbers of valid rollouts and valid questions, as floats."""

    rollouts: Array
    questions: Array


@flax.struct.dataclass
class LossParts:
    """Local shares of each term (they sum to the global value over devices), and ratio stats."""

    policy: Array
    kl: Array
    supervised: Array
    balance: Array
    depth: Array
    read: Array
    stats: SurrogateStats


def regularisers(shape: Shape, state: Question, records: Records, counts: Counts, axis_name=None):
    """λ_bal (A Σ p̃_a² − 1), λ_D E[ℓ]/(D − 1), λ_R mean r_ab, unweighted [choice of forms].

    Only the gates learn from them: their inputs are cut off (stop_gradient).

    Returns:
      Local shares (balance, depth, read).
    """
    logits = state.cut_logits
    valid = records.valid
    agents = records.available[:, :-1] & valid[:, None]
    # p̃ is nonlinear in batch means: sums over devices inside, divided by their number, so that
    # summing gradients over devices counts it once.
    asked = ops.global_sum(ops.masked_sum(subset.marginals(logits.scores, agents), valid, axis=0),
                           axis_name)  # fmt: skip
    share = ops.safe_divide(asked, jnp.broadcast_to(asked.sum(), asked.shape))
    devices = ops.global_sum(jnp.ones((), shape.dtype), axis_name)
    balance = jnp.where(asked.sum() > 0, shape.pool.num_agents * (share**2).sum() - 1, 0) / devices
    depths = categorical.probs(logits.depth, allowed_depths(records.available))
    expected = (depths * jnp.arange(NUM_DEPTHS, dtype=depths.dtype)[None]).sum(-1)
    per = jnp.maximum(counts.questions, 1)
    depth = ops.masked_sum(expected / (NUM_DEPTHS - 1), valid) / per
    pairs = cross_read.allowed_pairs(agents)
    read = ops.masked_mean(jax.nn.sigmoid(logits.read), pairs, axis=(-2, -1))
    return balance, depth, ops.masked_sum(read, valid) / per


def loss(
    shape: Shape, params: Params, batch: Batch, memory, calibration, rollout, old_log_probs,
    advantages, reference: GateLogits, valid, counts: Counts, axis_name=None,
):  # fmt: skip
    """L = L_policy + β KL + λ_sup CE + λ_bal B + λ_D D + λ_R R, this device's share.

    Args:
      shape: static.
      params: differentiated.
      batch: Q questions.
      memory: fixed. calibration: fixed.
      rollout: recorded decisions [Q, G].
      old_log_probs: [Q, G, D] of the sampling policy.
      advantages: [Q, G].
      reference: π_ref's logits.
      valid: [Q, G] bool, rollouts that count.
      counts: global.
      axis_name: of the devices, or None.

    Returns:
      (scalar, LossParts).
    """
    config, records = shape.config, batch.records
    state = question(shape, params, batch, memory, calibration, own_slots=False)
    log_probs, free = policy.decisions(
        config, shape.pool, state.logits, rollout, records.available
    )
    flat = lambda x: x.reshape((-1, *x.shape[2:]))  # noqa: E731
    ratio, took_part = log_ratios(
        flat(log_probs), flat(old_log_probs), flat(free & valid[..., None]),
        policy.component_of(config, shape.pool),
        num_components=len(policy.COMPONENTS), ratio=config.ratio,
    )  # fmt: skip
    surrogate, stats = clipped_surrogate(
        ratio, flat(advantages), took_part, clip_low=config.clip, clip_high=config.clip,
        denominator=counts.rollouts,
    )  # fmt: skip
    n = jnp.maximum(counts.rollouts, 1)
    divergence = policy.kl(
        config, shape.pool, state.logits, reference, rollout, records.available
    )
    divergence = ops.masked_sum(divergence, valid) / n
    combined = Network(shape).apply(params.network, state, records, rollout, method="combine")
    # Decisions are given here: the supervised term reaches no gate, only what is combined.
    gold, _ = combination.gold_log_prob(
        combination.log_probs(combined), records.gold, combined.candidates
    )
    supervised = -ops.masked_sum(gold, valid) / n
    balance, depth, read = regularisers(shape, state, records, counts, axis_name)
    total = (
        surrogate
        + config.kl_weight * divergence
        + config.supervised_weight * supervised
        + config.balance_weight * balance
        + config.depth_weight * depth
        + config.read_weight * read
    )
    return total, LossParts(surrogate, divergence, supervised, balance, depth, read, stats)
