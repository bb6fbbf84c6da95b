"""A fixed number of agents, drawn one after the other without replacement (the fixed-k variant).

Gumbel-top-k (Kool et al. 2019, arXiv 1903.06059) draws exactly the Plackett–Luce law, scored as the
*ordered* draw: log π(o) = Σ_j [s_{o_j} − log Σ_{i not in o_<j} exp s_i]. With fewer allowed agents
than k all of them are drawn, k_eff = min(k, allowed); the remaining places hold NOT_DRAWN.

``logits`` and bool ``allowed`` [..., A] have the same rank; axes of size 1 broadcast.
"""

import itertools

import jax
import jax.numpy as jnp

from gradejax.coordination.masks import aligned, not_negative
from gradejax.coordination.subset import Decisions
from gradejax.ops import masked_log_softmax

Array = jax.Array

NOT_DRAWN = -1
MAX_EXACT_AGENTS = 12  # kl() visits every set of fewer than k agents


def _top(scores: Array, allowed: Array, k: int) -> Array:
    if not 1 <= k <= scores.shape[-1]:
        raise ValueError(f"k must be in [1, {scores.shape[-1]}], the number of agents; got {k}")
    order = jnp.argsort(jnp.where(allowed, -scores, jnp.inf), axis=-1, stable=True)[..., :k]
    place = jnp.arange(k).reshape((1,) * (scores.ndim - 1) + (k,))
    drawn = place < allowed.sum(-1, keepdims=True)
    return jnp.where(drawn, order, NOT_DRAWN).astype(jnp.int32)


def sample(key, logits, allowed, k: int, shape: tuple[int, ...] | None = None) -> Array:
    """Draws an ordered k-tuple, int32 [*shape, k], NOT_DRAWN beyond k_eff; the key is consumed."""
    logits, allowed = aligned(logits, allowed)
    shape = logits.shape[:-1] if shape is None else tuple(shape)
    full = (*shape, logits.shape[-1])
    noisy = jnp.broadcast_to(logits, full) + jax.random.gumbel(key, full, logits.dtype)
    return _top(noisy, jnp.broadcast_to(allowed, full), k)


def mode(logits, allowed, k: int) -> Array:
    """The most probable order, int32 [..., k]: the k best, ties to the lowest index."""
    return _top(*aligned(logits, allowed), k)


def to_mask(order: Array, num_agents: int) -> Array:
    """Order [..., k] → the drawn set, bool [..., A]."""
    return jax.nn.one_hot(order, num_agents, dtype=bool).any(-2)


def decisions(order, logits, allowed) -> Decisions:
    """Log-probabilities [..., k] of the draws given those before; the last one left is forced."""
    logits, allowed = aligned(logits, allowed)
    shape = jnp.broadcast_shapes(order.shape[:-1], logits.shape[:-1])
    logits = jnp.broadcast_to(logits, (*shape, logits.shape[-1]))
    left = jnp.broadcast_to(allowed, logits.shape)
    log_probs, free = [], []
    for j in range(order.shape[-1]):
        pick = jnp.broadcast_to(order[..., j], shape)
        drawn = pick >= 0
        log_p = masked_log_softmax(logits, left)
        value = jnp.take_along_axis(log_p, jnp.maximum(pick, 0)[..., None], axis=-1)[..., 0]
        open_choice = drawn & (left.sum(-1) > 1)
        log_probs.append(jnp.where(open_choice, value, 0.0))
        free.append(open_choice)
        left = left & ~jax.nn.one_hot(pick, logits.shape[-1], dtype=bool)
    return Decisions(log_probs=jnp.stack(log_probs, -1), free=jnp.stack(free, -1))


def log_prob(order, logits, allowed) -> Array:
    """log π of the ordered draw [...]; 0 where nothing had to be decided."""
    return decisions(order, logits, allowed).log_probs.sum(-1)


def takes_part(allowed) -> Array:
    """bool [..., A] → [...]: at least two agents, so that the order was a decision."""
    return allowed.sum(-1) > 1


def _states(size: int, k: int) -> list[tuple[int, ...]]:
    return [s for j in range(k) for s in itertools.combinations(range(size), j)]


def kl(p_logits, r_logits, allowed, k: int) -> Array:
    """KL(p‖r) of the ordered draws [...], exact.

    By the chain rule Σ over the sets U of fewer than k agents of P_p(first |U| draws are U) times
    the KL of the next draw. P_p follows the recursion P(U) = Σ_{i∈U} P(U∖i) p(i | not U∖i), so no
    order is enumerated: 2^A sets at most, refused above MAX_EXACT_AGENTS agents.
    """
    p_logits, allowed = aligned(p_logits, allowed)
    r_logits, allowed = aligned(r_logits, allowed)
    p_logits = jnp.broadcast_to(p_logits, r_logits.shape)
    size = p_logits.shape[-1]
    if size > MAX_EXACT_AGENTS:
        raise ValueError(f"exact KL needs at most {MAX_EXACT_AGENTS} agents; got {size}")
    states = _states(size, k)
    taken = jnp.array([[i in state for i in range(size)] for state in states])
    taken = taken.reshape((1,) * (p_logits.ndim - 1) + taken.shape)
    left = allowed[..., None, :] & ~taken  # [..., U, A]
    log_p = masked_log_softmax(jnp.broadcast_to(p_logits[..., None, :], left.shape), left)
    log_r = masked_log_softmax(jnp.broadcast_to(r_logits[..., None, :], left.shape), left)
    log_p, log_r = jnp.where(left, log_p, 0.0), jnp.where(left, log_r, 0.0)
    next_p = jnp.where(left, jnp.exp(log_p), 0.0)
    step = (next_p * (log_p - log_r)).sum(-1)  # [..., U]
    index = {state: n for n, state in enumerate(states)}
    reach: list[Array] = []
    for state in states:  # smaller sets come first
        if not state:
            reach.append(jnp.ones_like(step[..., 0]))
            continue
        before = [(index[tuple(j for j in state if j != i)], i) for i in state]
        reach.append(sum(reach[u] * next_p[..., u, i] for u, i in before))
    return not_negative((jnp.stack(reach, -1) * step).sum(-1))
