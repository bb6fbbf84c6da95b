"""Independent Bernoulli decisions over a set, conditioned on choosing at least one.

The law of the agents that are asked (assignment) and of those that are kept (prune), GRADE
(arXiv 2607.10836) with the design's choice that nobody-at-all is impossible:

    π(S) = Π_{i∈S} p_i Π_{i∉S} (1 − p_i) / Z,   Z = 1 − Π_i (1 − p_i),   p_i = σ(s_i),   S ≠ ∅,

products over the *allowed* elements. Every function takes ``logits`` s and a bool ``allowed`` of
the same rank; leading axes are free and axes of size 1 broadcast, so logits [Q, 1, A] may meet
allowed sets [Q, G, A]. The set is the last axis.

Two cases need no decision: one allowed element is forced (log-probability 0, it takes no part)
and none allowed gives the empty set (log-probability 0, KL 0). Neither sends a gradient.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination.masks import aligned, not_negative, takes_part
from gradejax.ops import log_normalizer_nonempty, log_normalizers_nonempty, log_sigmoids

Array = jax.Array


@flax.struct.dataclass
class Decisions:
    """One entry a Bernoulli decision, in the order in which they are drawn."""

    log_probs: Array  # [..., A] log-probability given the decisions before it; 0 where not free
    free: Array  # [..., A] bool: was drawn; False outside the allowed set and where forced


def log_normalizer(logits, allowed) -> Array:
    """log Z = log(−expm1(Σ log σ(−s))) [...]; 0 where nothing is allowed.

    Finite with the right gradient at any logits: 1 − Π(1 − p) itself is 0 in float32, with
    infinite gradients, from logits of about −17.
    """
    logits, allowed = aligned(logits, allowed)
    return log_normalizer_nonempty(logits, allowed)


def _suffix_log_normalizers(logits: Array, allowed: Array) -> Array:
    """[..., A]: entry i is log(1 − Π_{j≥i}(1 − p_j)); 0 where no j ≥ i is allowed."""
    size = logits.shape[-1]
    tail = np.triu(np.ones((size, size), bool))  # row i keeps the columns j >= i
    tail = tail.reshape((1,) * (logits.ndim - 1) + tail.shape)
    return log_normalizers_nonempty(logits, allowed[..., None, :] & tail)


def _last(allowed: Array) -> tuple[Array, Array]:
    """For each element: some later one is allowed; it is the last allowed one."""
    later = jnp.cumsum(allowed[..., ::-1], axis=-1)[..., ::-1] - allowed > 0
    return later, allowed & ~later


def log_prob(subset, logits, allowed) -> Array:
    """log π(S) [...] of non-empty sets inside the allowed set.

    Args:
      subset: bool [..., A]. Elements outside ``allowed`` are ignored. An empty set where something
        is allowed has no probability; the formula's finite value is returned all the same, so that
        rollouts that did not play this component stay finite until their mask drops them.
      logits: [..., A].
      allowed: bool [..., A].
    """
    logits, allowed, subset = aligned(logits, allowed, subset)
    terms = jnp.where(subset, *log_sigmoids(logits))
    independent = jnp.where(allowed, terms, 0.0).sum(-1)
    value = independent - log_normalizer_nonempty(logits, allowed)
    # With one allowed element the two terms cancel only up to rounding, in value and gradient.
    return jnp.where(takes_part(allowed), value, 0.0)


def decisions(subset, logits, allowed) -> Decisions:
    """Splits log π(S) into its sequential conditionals; they sum to ``log_prob``.

    With nobody chosen before i: P(b_i = 1) = p_i / (1 − Π_{j≥i}(1 − p_j)); afterwards p_i. The last
    allowed element, reached with nobody chosen, is forced and flagged as not free.
    """
    logits, allowed, subset = aligned(logits, allowed, subset)
    subset = subset & allowed
    chosen_before = jnp.cumsum(subset, axis=-1) - subset > 0
    left_after, _ = _last(allowed)
    log_z = _suffix_log_normalizers(logits, allowed)
    log_z_next = jnp.concatenate([log_z[..., 1:], jnp.zeros_like(log_z[..., :1])], axis=-1)
    plain = jnp.where(subset, *log_sigmoids(logits))
    first = plain - log_z + jnp.where(subset, 0.0, log_z_next)
    free = allowed & (chosen_before | left_after)
    value = jnp.where(chosen_before, plain, first)
    return Decisions(log_probs=jnp.where(free, value, 0.0), free=free)


def sample(key, logits, allowed, shape: tuple[int, ...] | None = None) -> Array:
    """Draws sets exactly from π, sequentially, without rejection.

    Args:
      key: consumed.
      logits, allowed: [..., A].
      shape: batch shape of the draw (without A); the leading shape of the arguments by default. The
        arguments are broadcast to it, so one row of logits gives G draws with ``shape=(G,)``.

    Returns:
      bool [*shape, A]; empty only where nothing is allowed.
    """
    logits, allowed = aligned(logits, allowed)
    shape = logits.shape[:-1] if shape is None else tuple(shape)
    u = jax.random.uniform(key, (*shape, logits.shape[-1]), logits.dtype)
    return from_uniform(u, logits, allowed)


def from_uniform(u, logits, allowed) -> Array:
    """The set that uniform noise in [0, 1) selects; ``sample`` without its key.

    Args:
      u: [..., A], the full shape of the draw; the others broadcast to it.
      logits, allowed: [..., A].
    """
    logits, allowed = aligned(logits, allowed)
    log_z = _suffix_log_normalizers(logits, allowed)
    log_p, _ = log_sigmoids(logits)
    p, p_first = jnp.exp(log_p), jnp.exp(log_p - log_z)
    _, last = _last(allowed)
    p, p_first, allowed, last = (
        jnp.broadcast_to(x, u.shape) for x in (p, p_first, allowed, last)
    )
    # One uniform an element serves both laws, as only one of them is ever read: `hit` until the
    # first success, `p` after it. The last allowed element is set by rule, not by u < 1 - rounding.
    hit = allowed & ((u < p_first) | last)
    chosen_before = jnp.cumsum(hit, axis=-1) - hit > 0
    return jnp.where(chosen_before, allowed & (u < p), hit)


def marginals(logits, allowed) -> Array:
    """q_i = P(i ∈ S) = p_i / Z [..., A]; 0 outside the allowed set, 1 for a forced element."""
    logits, allowed = aligned(logits, allowed)
    log_z = log_normalizer_nonempty(logits, allowed)[..., None]
    q = jnp.where(allowed, jnp.exp(log_sigmoids(logits)[0] - log_z), 0.0)
    return jnp.where(takes_part(allowed)[..., None], q, allowed.astype(q.dtype))


def kl(p_logits, r_logits, allowed) -> Array:
    """KL(p‖r) of two such laws over the same allowed set [...], exact.

    KL = Σ_i [q_i log(p_i/r_i) + (1 − q_i) log((1 − p_i)/(1 − r_i))] − log Z_p + log Z_r, with q the
    marginals of p. Exactly 0 for equal logits and never negative; the gradient is that of the
    formula.
    """
    p_logits, allowed = aligned(p_logits, allowed)
    r_logits, allowed = aligned(r_logits, allowed)
    p_logits = jnp.broadcast_to(p_logits, r_logits.shape)
    both = jnp.stack([p_logits, r_logits])  # everything is evaluated once, for both laws
    on, off = log_sigmoids(both)
    log_z = log_normalizer_nonempty(both, jnp.broadcast_to(allowed[None], both.shape))
    some = takes_part(allowed)
    q = jnp.where(allowed & some[..., None], jnp.exp(on[0] - log_z[0][..., None]), 0.0)
    terms = jnp.where(allowed, q * (on[0] - on[1]) + (1.0 - q) * (off[0] - off[1]), 0.0).sum(-1)
    return not_negative(jnp.where(some, terms - (log_z[0] - log_z[1]), 0.0))


def threshold(logits, allowed, tau: float = 0.5) -> Array:
    """The set used at inference: {i allowed: σ(s_i) ≥ τ}, or the best allowed element alone.

    With τ = .5 it is exactly the mode of π; with another τ (GRADE prunes at .35) it is not. Ties
    for the best go to the lowest index.

    Returns:
      bool [..., A]; empty only where nothing is allowed.
    """
    logits, allowed = aligned(logits, allowed)
    above = allowed & (jax.nn.sigmoid(logits) >= tau)
    best = jnp.argmax(jnp.where(allowed, logits, -jnp.inf), axis=-1)
    alone = allowed & jax.nn.one_hot(best, logits.shape[-1], dtype=bool)
    return jnp.where(above.any(-1, keepdims=True), above, alone)


def mode(logits, allowed) -> Array:
    """The most probable set [..., A]: ``threshold`` at one half."""
    return threshold(logits, allowed, 0.5)
