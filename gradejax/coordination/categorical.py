"""One choice among the allowed entries of the last axis: the depth, and the manager at depth 1.

``logits`` [..., N] and bool ``allowed`` [..., N] have the same rank; axes of size 1 broadcast.
Where nothing is allowed the choice is ``NO_CHOICE``, and log-probability, entropy and KL are 0 with
zero gradients. A negative choice scores 0 too: a manager that was not drawn has no probability.
"""

import jax
import jax.numpy as jnp

from gradejax.coordination.masks import aligned, not_negative
from gradejax.coordination.masks import takes_part as takes_part  # part of this vocabulary
from gradejax.ops import masked_log_softmax

Array = jax.Array

NO_CHOICE = -1  # one_hot(NO_CHOICE) is all zero, so masks built from it are empty


def log_probs(logits, allowed) -> Array:
    """Log-softmax over the allowed entries [..., N]; −inf (with a zero gradient) elsewhere."""
    logits, allowed = aligned(logits, allowed)
    return masked_log_softmax(logits, allowed)


def probs(logits, allowed) -> Array:
    """Probabilities [..., N]: exactly 0 outside the allowed entries, all 0 where there are none."""
    logits, allowed = aligned(logits, allowed)
    return jnp.exp(masked_log_softmax(logits, allowed))


def log_prob(choice, logits, allowed) -> Array:
    """log π(choice) [...]; exactly 0 for a forced choice, 0 for ``NO_CHOICE``.

    Args:
      choice: int [...]; the leading shape after broadcasting. An index that is not allowed has no
        probability: −inf.
      logits, allowed: [..., N].
    """
    logits, allowed = aligned(logits, allowed)
    choice = jnp.asarray(choice)
    all_log_probs = masked_log_softmax(logits, allowed)
    all_log_probs = jnp.broadcast_to(all_log_probs, (*choice.shape, logits.shape[-1]))
    # A selection, not a gather, whose gradient would be a scatter.
    chosen = jax.nn.one_hot(choice, logits.shape[-1], dtype=bool)
    value = jnp.where(chosen, all_log_probs, 0.0).sum(-1)
    decided = (choice >= 0) & allowed.any(-1)
    return jnp.where(decided, value, 0.0)


def sample(key, logits, allowed, shape: tuple[int, ...] | None = None) -> Array:
    """Draws choices, int32 of ``shape`` (the leading shape of the arguments by default).

    The arguments are broadcast to ``shape``; the key is consumed.
    """
    logits, allowed = aligned(logits, allowed)
    shape = logits.shape[:-1] if shape is None else tuple(shape)
    return from_gumbel(
        jax.random.gumbel(key, (*shape, logits.shape[-1]), logits.dtype), logits, allowed
    )


def from_gumbel(noise, logits, allowed) -> Array:
    """The choice that standard Gumbel noise [..., N] selects; ``sample`` without its key."""
    logits, allowed = aligned(logits, allowed)
    logits, allowed = jnp.broadcast_to(logits, noise.shape), jnp.broadcast_to(allowed, noise.shape)
    return mode(logits + noise, allowed)


def mode(logits, allowed) -> Array:
    """The most probable choice, int32 [...]; ties go to the lowest index."""
    logits, allowed = aligned(logits, allowed)
    best = jnp.argmax(jnp.where(allowed, logits, -jnp.inf), axis=-1)
    return jnp.where(allowed.any(-1), best, NO_CHOICE).astype(jnp.int32)


def entropy(logits, allowed) -> Array:
    """−Σ p log p over the allowed entries [...], in nats."""
    logits, allowed = aligned(logits, allowed)
    log_p = masked_log_softmax(logits, allowed)
    safe = jnp.where(allowed, log_p, 0.0)  # 0 · −inf would be NaN, in value and gradient
    return -jnp.where(allowed, jnp.exp(safe) * safe, 0.0).sum(-1)


def kl(p_logits, r_logits, allowed) -> Array:
    """KL(p‖r) = Σ p (log p − log r) over the same allowed entries [...]; exact.

    Exactly 0 for equal logits and never negative.
    """
    p_logits, allowed = aligned(p_logits, allowed)
    r_logits, allowed = aligned(r_logits, allowed)
    log_p = masked_log_softmax(jnp.broadcast_to(p_logits, r_logits.shape), allowed)
    log_r = masked_log_softmax(r_logits, allowed)
    log_p, log_r = jnp.where(allowed, log_p, 0.0), jnp.where(allowed, log_r, 0.0)
    return not_negative(jnp.where(allowed, jnp.exp(log_p) * (log_p - log_r), 0.0).sum(-1))
