"""GRADE's decisions: drawn, scored, compared with a reference, and made without chance.

A rollout is: a depth; at depth 1 a manager; the agents asked; at depth 2 who reads whom and who is
kept. All masks come from the record, so new, old and reference policies score the same events.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax import ops
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


@flax.struct.dataclass
class Noise:
    """What the decisions of G rollouts are drawn with, in one call: uniforms in (0, 1).

    depth [..., 3]; manager [..., M]; agents [..., A]; read [..., A, A]; prune [..., A].
    """

    depth: Array
    manager: Array
    agents: Array
    read: Array
    prune: Array


def draw_noise(key, pool: Pool, group_size: int, dtype) -> Noise:
    """Noise of one question [G, ...]; the key is consumed.

    One draw cut into parts, not a key for each decision: hashing is most of the cost of sampling.
    """
    a, m = pool.num_agents, pool.num_managers
    sizes = (NUM_DEPTHS, m, a, a * a, a)
    tiny = jnp.finfo(dtype).tiny  # 0 would be a Gumbel of -inf
    u = jax.random.uniform(key, (group_size, sum(sizes)), dtype, minval=tiny)
    parts = jnp.split(u, np.cumsum(sizes)[:-1], axis=-1)
    parts[3] = parts[3].reshape(group_size, a, a)
    return Noise(*parts)


def _gumbel(u):
    return -jnp.log(-jnp.log(u))


def _pick_agents(config: GradeConfig, noise, scores, allowed):
    """S (and its order when of a fixed size), drawn or, without noise, the likeliest."""
    if config.fixed_k:
        shifted = scores if noise is None else scores + _gumbel(noise.agents)
        order = plackett_luce.mode(shifted, allowed, config.fixed_k)  # Gumbel-top-k
        return plackett_luce.to_mask(order, allowed.shape[-1]), order
    if noise is None:
        return subset.threshold(scores, allowed, config.assign_threshold), None
    return subset.from_uniform(noise.agents, scores, allowed), None


def _rollout(config, pool, logits, available, noise, prune_threshold=None) -> Rollout:
    """Decisions [Q, G, ...] of logits and availability [Q, 1, ...]; those of inference (G = 1)
    without noise."""
    depths = allowed_depths(available)
    scores, managers = manager_logits(
        logits.scores, available[..., :-1], pool.manager_of, pool.num_managers
    )
    if noise is None:
        depth = categorical.mode(logits.depth, depths)
        manager = categorical.mode(scores, managers)
    else:
        depth = categorical.from_gumbel(_gumbel(noise.depth), logits.depth, depths)
        manager = categorical.from_gumbel(_gumbel(noise.manager), scores, managers)
    manager = jnp.where(depth == MANAGER, manager, categorical.NO_CHOICE)
    allowed = allowed_agents(depth, manager, available, pool.manager_of, pool.num_managers)
    asked, order = _pick_agents(
        config, noise, jnp.broadcast_to(logits.scores, allowed.shape), allowed
    )
    deep = asked & (depth == POOL)[..., None]
    relaxed = None
    if noise is None:
        edges = cross_read.mode(logits.read, deep)
        kept = prune.threshold(logits.prune, deep, prune_threshold)
        if config.read_relaxation == "concrete":
            pairs = cross_read.allowed_pairs(deep)
            relaxed = jnp.where(pairs, jax.nn.sigmoid(logits.read), 0.0)
    else:
        logistic = jnp.log(noise.read) - jnp.log1p(-noise.read)
        drawn = cross_read.from_noise(
            logistic, logits.read, deep, temperature=config.read_temperature
        )
        edges = drawn.hard
        kept = subset.from_uniform(noise.prune, logits.prune, deep)
        if config.read_relaxation == "concrete":
            relaxed = drawn.relaxed
    kept = jnp.where((depth == POOL)[..., None], kept, asked)
    return Rollout(
        depth=depth, manager=manager, asked=asked, order=order, edges=edges, relaxed=relaxed,
        members=with_orchestrator(depth, asked), kept=with_orchestrator(depth, kept),
    )  # fmt: skip


def _for_rollouts(tree):
    """Adds the axis of rollouts, of size 1, behind that of questions."""
    return jax.tree.map(lambda x: x[:, None], tree)


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
    dtype = logits.depth.dtype
    noise = jax.vmap(lambda key: draw_noise(key, pool, group_size, dtype))(keys)
    return _rollout(config, pool, _for_rollouts(logits), _for_rollouts(available), noise)


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

    available = jnp.asarray(available)
    return _rollout(config, pool, _for_rollouts(logits), _for_rollouts(available), None, tau)


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
    deep = rollout.asked & (rollout.depth == POOL)[..., None]
    if config.fixed_k:
        agents = plackett_luce.decisions(rollout.order, logits.scores[:, None], allowed)
        kept = prune.decisions(rollout.kept[..., :-1], logits.prune[:, None], deep)
    else:
        # Asking and keeping follow one law: both in one call, stacked in front.
        both = subset.decisions(
            jnp.stack([rollout.asked, rollout.kept[..., :-1]]),
            jnp.stack([logits.scores, logits.prune])[:, :, None],
            jnp.stack([allowed, deep]),
        )
        agents, kept = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
    edges = cross_read.decisions(rollout.edges, logits.read[:, None], deep)
    edge_free = edges.free & (config.read_relaxation == "hard")
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

    depths = allowed_depths(available)
    depth_kl = categorical.kl(logits.depth, reference.depth, depths)
    weights = categorical.probs(logits.depth, depths)
    agents = jnp.asarray(available)[:, :-1]
    deep = rollout.asked & (rollout.depth == POOL)[..., None]
    pools = membership(pool.manager_of, pool.num_managers)
    pools = np.concatenate([pools, np.ones_like(pools[:1])])  # the whole pool last
    allowed = agents[:, None] & pools[None]  # [Q, M+1, A]
    p, r = logits.scores[:, None], reference.scores[:, None]
    if config.fixed_k:
        asked = plackett_luce.kl(p, r, allowed, config.fixed_k)
        kept = prune.kl(logits.prune[:, None], reference.prune[:, None], deep)
    else:
        # Asking and keeping follow one law: all their sets in one call.
        join = lambda x, y: jnp.concatenate(  # noqa: E731
            [jnp.broadcast_to(x, allowed.shape), jnp.broadcast_to(y[:, None], deep.shape)], axis=1
        )
        all_sets = subset.kl(
            join(p, logits.prune), join(r, reference.prune),
            jnp.concatenate([allowed, deep], axis=1),
        )  # fmt: skip
        asked, kept = jnp.split(all_sets, [len(pools)], axis=1)
    p, managers = manager_logits(logits.scores, agents, pool.manager_of, pool.num_managers)
    r, _ = manager_logits(reference.scores, agents, pool.manager_of, pool.num_managers)
    managed = categorical.kl(p, r, managers)
    managed = managed + (categorical.probs(p, managers) * asked[:, :-1]).sum(-1)
    shared = depth_kl + weights[:, MANAGER] * managed + weights[:, POOL] * asked[:, -1]
    edges = cross_read.kl(logits.read[:, None], reference.read[:, None], deep)
    if config.read_relaxation == "concrete":
        edges = jnp.zeros_like(edges)
    return shared[:, None] + edges + kept


def entropies(config: GradeConfig, pool: Pool, logits, available) -> dict[str, Array]:
    """Mean entropy of each gate's decisions per question [Q], in nats per decision that is open.

    Bernoulli gates are averaged over the decisions that could be made, so that 0 means certain.
    """
    q, a = logits.scores.shape
    agents = jnp.asarray(available)[:, :-1]
    pairs = cross_read.allowed_pairs(agents).reshape(q, a * a)
    all_logits = jnp.concatenate([logits.scores, logits.prune, logits.read.reshape(q, a * a)], -1)
    on, off = ops.log_sigmoids(all_logits)
    each = -(jnp.exp(on) * on + jnp.exp(off) * off)
    parts = jnp.split(each, [a, 2 * a], axis=-1)
    scores, kept, read = (
        ops.masked_mean(x, mask, axis=-1)
        for x, mask in zip(parts, (agents, agents, pairs), strict=True)
    )
    depth = categorical.entropy(logits.depth, allowed_depths(available))
    return {"depth": depth, "assignment": scores, "read": read, "prune": kept}
