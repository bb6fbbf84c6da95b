"""GRADE's decisions: drawn, scored, compared with a reference, and made without chance.

A rollout is: a depth; at depth 1 a manager; the agents asked; at depth 2 who reads whom and who is
kept. All masks come from the record, so new, old and reference policies score the same events.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from gradejax.coordination import categorical, cross_read, plackett_luce, prune, subset
from gradejax.coordination.assignment import manager_logits
from gradejax.coordination.depth import (
    MANAGER,
    NUM_DEPTHS,
    POOL,
    allowed_agents,
    allowed_depths,
    with_orchestrator,
)
from gradejax.coordination.managers import membership
from gradejax.systems.grade.config import GradeConfig
from gradejax.types import Array, Pool

COMPONENTS = ("depth", "assignment", "read", "prune")


@flax.struct.dataclass
class Rollout:
    """The decisions of G rollouts of each question.

    Attributes:
      depth: [Q, G] int32, −1 where nobody is available.
      manager: [Q, G] int32, −1 but at depth 1.
      asked: [Q, G, A] bool, S.
      order: [Q, G, k] int32, the order in which a fixed number was drawn; None otherwise.
      edges: [Q, G, A, A] bool, row reads column.
      relaxed: [Q, G, A, A] in [0, 1] with read_relaxation="concrete"; None otherwise.
      members: [Q, G, A+1] bool, S, or M0 alone at depth 0.
      kept: [Q, G, A+1] bool, K.
    """

    depth: Array
    manager: Array
    asked: Array
    order: Any
    edges: Array
    relaxed: Any
    members: Array
    kept: Array


def _pick_agents(config: GradeConfig, key, scores, allowed):
    """S (and its order when of a fixed size), drawn with a key or, without one, the likeliest."""
    if config.fixed_k:
        k = config.fixed_k
        order = (
            plackett_luce.mode(scores, allowed, k) if key is None
            else plackett_luce.sample(key, scores, allowed, k, allowed.shape[:-1])
        )  # fmt: skip
        return plackett_luce.to_mask(order, allowed.shape[-1]), order
    if key is None:
        return subset.threshold(scores, allowed, config.assign_threshold), None
    return subset.sample(key, scores, allowed, allowed.shape[:-1]), None


def _rollout(config, pool, logits, available, depth, manager, agent_key, edge_key, prune_key,
             prune_threshold):  # fmt: skip
    """The decisions below depth and manager; without keys, those of inference. Arrays [G, ...]."""
    allowed = allowed_agents(depth, manager, available[None], pool.manager_of, pool.num_managers)
    scores = jnp.broadcast_to(logits.scores[None], allowed.shape)
    asked, order = _pick_agents(config, agent_key, scores, allowed)
    deep = asked & (depth == POOL)[:, None]
    if edge_key is None:
        edges, relaxed = cross_read.mode(logits.read[None], deep), None
        relaxed_on = config.read_relaxation == "concrete"
        if relaxed_on:
            pairs = cross_read.allowed_pairs(deep)
            relaxed = jnp.where(pairs, jax.nn.sigmoid(logits.read[None]), 0.0)
    else:
        drawn = cross_read.sample(
            edge_key, logits.read[None], deep, temperature=config.read_temperature,
            shape=depth.shape,
        )  # fmt: skip
        edges = drawn.hard
        relaxed = drawn.relaxed if config.read_relaxation == "concrete" else None
    if prune_key is None:
        kept = prune.threshold(logits.prune[None], deep, prune_threshold)
    else:
        kept = prune.sample(prune_key, logits.prune[None], deep, depth.shape)
    kept = jnp.where((depth == POOL)[:, None], kept, asked)
    return Rollout(
        depth=depth, manager=manager, asked=asked, order=order, edges=edges, relaxed=relaxed,
        members=with_orchestrator(depth, asked), kept=with_orchestrator(depth, kept),
    )  # fmt: skip


def sample(config: GradeConfig, pool: Pool, keys, logits, available, group_size: int) -> Rollout:
    """Draw rollouts; a question's draws depend on its own key alone.

    Args:
      config: settings.
      pool: the pool.
      keys: [Q] typed keys, one a question, consumed.
      logits: GateLogits of Q questions.
      available: [Q, A+1] bool.
      group_size: G.
    """

    def one(key, logits, available):
        depth_key, manager_key, *rest = jax.random.split(key, 5)
        depth = categorical.sample(depth_key, logits.depth[None], allowed_depths(available)[None],
                                   (group_size,))  # fmt: skip
        scores, allowed = manager_logits(
            logits.scores[None], available[None, :-1], pool.manager_of, pool.num_managers
        )
        manager = categorical.sample(manager_key, scores, allowed, (group_size,))
        manager = jnp.where(depth == MANAGER, manager, categorical.NO_CHOICE)
        return _rollout(config, pool, logits, available, depth, manager, *rest, None)

    return jax.vmap(one)(keys, logits, available)


def decide(config: GradeConfig, pool: Pool, logits, available, *, prune_threshold=None) -> Rollout:
    """The decisions of inference, one rollout a question (G = 1).

    Args:
      config: settings.
      pool: the pool.
      logits: GateLogits.
      available: [Q, A+1] bool.
      prune_threshold: τ^P; the config's by default; .5 gives the mode of the sampled policy.
    """
    tau = config.prune_threshold if prune_threshold is None else prune_threshold

    def one(logits, available):
        depth = categorical.mode(logits.depth[None], allowed_depths(available)[None])
        scores, allowed = manager_logits(
            logits.scores[None], available[None, :-1], pool.manager_of, pool.num_managers
        )
        manager = categorical.mode(scores, allowed)
        manager = jnp.where(depth == MANAGER, manager, categorical.NO_CHOICE)
        return _rollout(config, pool, logits, available, depth, manager, None, None, None, tau)

    return jax.vmap(one)(logits, available)


def component_of(config: GradeConfig, pool: Pool) -> tuple[int, ...]:
    """The component (index into COMPONENTS) of each scored decision, in ``decisions``' order."""
    a = pool.num_agents
    agents = config.fixed_k or a
    return (0,) + (1,) * (1 + agents) + (2,) * (a * a) + (3,) * a


def decisions(config: GradeConfig, pool: Pool, logits, rollout: Rollout, available):
    """Log-probability of every decision given those before it.

    Depth, manager, agents (sequential conditionals of S), edges, prunes.

    Args:
      config: settings.
      pool: the pool.
      logits: GateLogits of Q questions.
      rollout: recorded decisions.
      available: [Q, A+1] bool.

    Returns:
      log_probs [Q, G, D] and free [Q, G, D] bool: False where forced or not made.
    """
    q, g = rollout.depth.shape
    depth_allowed = jnp.broadcast_to(allowed_depths(available)[:, None], (q, g, NUM_DEPTHS))
    depth_lp = categorical.log_prob(rollout.depth, logits.depth[:, None], depth_allowed)
    depth_free = categorical.takes_part(depth_allowed)
    scores, managers = manager_logits(
        logits.scores[:, None], available[:, None, :-1], pool.manager_of, pool.num_managers
    )
    managers = jnp.broadcast_to(managers, (q, g, pool.num_managers))
    manager_lp = categorical.log_prob(rollout.manager, scores, managers)
    manager_free = categorical.takes_part(managers) & (rollout.depth == MANAGER)
    allowed = allowed_agents(
        rollout.depth, rollout.manager, available[:, None], pool.manager_of, pool.num_managers
    )
    if config.fixed_k:
        agents = plackett_luce.decisions(rollout.order, logits.scores[:, None], allowed)
    else:
        agents = subset.decisions(rollout.asked, logits.scores[:, None], allowed)
    deep = rollout.asked & (rollout.depth == POOL)[..., None]
    edges = cross_read.decisions(rollout.edges, logits.read[:, None], deep)
    edge_free = edges.free & (config.read_relaxation == "hard")
    kept = prune.decisions(rollout.kept[..., :-1], logits.prune[:, None], deep)
    flat = lambda x: x.reshape(q, g, -1)  # noqa: E731
    log_probs = jnp.concatenate(
        [depth_lp[..., None], manager_lp[..., None], agents.log_probs, flat(edges.log_probs),
         kept.log_probs], axis=-1,
    )  # fmt: skip
    free = jnp.concatenate(
        [depth_free[..., None], manager_free[..., None], agents.free, flat(edge_free), kept.free],
        axis=-1,
    )
    return jnp.where(free, log_probs, 0.0), free


def kl(config: GradeConfig, pool: Pool, logits, reference, rollout: Rollout, available):
    """KL(π‖π_ref) [Q, G]: KL_D + Σ_ℓ g_ℓ KL_A(ℓ), plus read and prune given the recorded S.

    Depth, manager and assignment are exact sums over what could have been chosen. Read and prune
    are conditional on the S drawn; the gradient through the chance of that S is left out. Never
    negative; exactly 0 for equal logits.

    Args:
      logits: of the trained policy, with gradient.
      reference: GateLogits of the frozen copy.
      rollout: recorded decisions.
      available: [Q, A+1] bool.
    """

    def sets(p, r, allowed):
        if config.fixed_k:
            return plackett_luce.kl(p, r, allowed, config.fixed_k)
        return subset.kl(p, r, allowed)

    depths = allowed_depths(available)
    depth_kl = categorical.kl(logits.depth, reference.depth, depths)
    weights = categorical.probs(logits.depth, depths)
    agents = available[:, :-1]
    whole = sets(logits.scores, reference.scores, agents)
    p, allowed = manager_logits(logits.scores, agents, pool.manager_of, pool.num_managers)
    r, _ = manager_logits(reference.scores, agents, pool.manager_of, pool.num_managers)
    pools = jnp.asarray(membership(pool.manager_of, pool.num_managers))
    inside = sets(
        logits.scores[:, None], reference.scores[:, None], agents[:, None] & pools[None]
    )  # [Q, M]
    managed = categorical.kl(p, r, allowed) + (categorical.probs(p, allowed) * inside).sum(-1)
    shared = depth_kl + weights[:, MANAGER] * managed + weights[:, POOL] * whole
    deep = rollout.asked & (rollout.depth == POOL)[..., None]
    edges = cross_read.kl(logits.read[:, None], reference.read[:, None], deep)
    if config.read_relaxation == "concrete":
        edges = jnp.zeros_like(edges)
    kept = prune.kl(logits.prune[:, None], reference.prune[:, None], deep)
    return shared[:, None] + edges + kept


def entropies(config: GradeConfig, pool: Pool, logits, available) -> dict[str, Array]:
    """Mean entropy of each gate's decisions per question [Q], in nats per decision that is open.

    Bernoulli gates are averaged over the decisions that could be made, so that 0 means certain.
    """
    agents = available[:, :-1]

    def bernoulli(x, mask):
        each = jax.nn.sigmoid(x) * jax.nn.softplus(-x) + jax.nn.sigmoid(-x) * jax.nn.softplus(x)
        total = jnp.where(mask, each, 0.0).reshape(x.shape[0], -1).sum(-1)
        return total / jnp.maximum(mask.reshape(x.shape[0], -1).sum(-1), 1)

    return {
        "depth": categorical.entropy(logits.depth, allowed_depths(available)),
        "assignment": bernoulli(logits.scores, agents),
        "read": bernoulli(logits.read, cross_read.allowed_pairs(agents)),
        "prune": bernoulli(logits.prune, agents),
    }
