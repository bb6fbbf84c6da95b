"""Shapes of logits and masks, and two rules that every distribution here follows."""

import jax
import jax.numpy as jnp

from gradejax.ops import as_float

Array = jax.Array


def aligned(logits, *masks) -> tuple[Array, ...]:
    """Gives logits and masks one shape; entries outside the first mask get a harmless logit 0.

    Axes of size 1 broadcast. Ranks must agree: ``ops`` reads a mask of lower rank from the left,
    numpy from the right, so a missing axis is an error here rather than a guess.
    """
    logits = as_float(logits)
    masks = [jnp.asarray(mask).astype(bool) for mask in masks]
    if len({logits.ndim, *(mask.ndim for mask in masks)}) > 1:
        raise ValueError(
            "logits and masks must have the same rank (axes of size 1 broadcast); got logits "
            f"{logits.shape} and masks {[mask.shape for mask in masks]}"
        )
    shape = jnp.broadcast_shapes(logits.shape, *(mask.shape for mask in masks))
    allowed = jnp.broadcast_to(masks[0], shape)
    logits = jnp.where(allowed, jnp.broadcast_to(logits, shape), 0.0)
    return logits, allowed, *(jnp.broadcast_to(mask, shape) for mask in masks[1:])


def takes_part(allowed) -> Array:
    """bool [..., N] allowed → [...]: at least two entries, so that something was decided."""
    return jnp.asarray(allowed).astype(bool).sum(-1) > 1


def not_negative(divergence: Array) -> Array:
    """Lifts rounding below 0 to 0, in the value only: a clip would kill the gradient there."""
    return divergence + jax.lax.stop_gradient(jnp.maximum(divergence, 0.0) - divergence)
