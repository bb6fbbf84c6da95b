"""Named averages of token losses, independent of how the batch is cut.

Three different averages go under the name "GRPO loss". Each is here by name, and each divides a
local *sum* by a *global* count that the caller provides (summed over micro-batches and devices):
dividing by each piece's own count makes the loss depend on the cut.
"""

import jax
import jax.numpy as jnp

from gradejax import ops

Array = jax.Array

AGGREGATIONS = ("constant_length", "sequence_mean", "token_mean")


def local_count(mask, aggregation: str) -> Array:
    """The count ``aggregate`` divides by, for these rows: tokens, or sequences with a token.

    Sum it over the micro-batches and devices of one optimiser step.

    Args:
      mask: [N, T] bool. aggregation: one of ``AGGREGATIONS``.

    Returns:
      [] int32. A row without tokens is padding and does not count.
    """
    _check(aggregation)
    mask = jnp.asarray(mask, bool)
    counted = mask if aggregation == "token_mean" else mask.any(-1)
    return counted.sum(dtype=jnp.int32)


def aggregate(values, mask, *, aggregation: str, denominator, max_length: int | None = None):
    """Reduces per-token values to a scalar.

    * ``token_mean``: Σ_i Σ_t v_it / tokens (DAPO).
    * ``sequence_mean``: Σ_i (mean_t v_it) / sequences (GRPO as printed).
    * ``constant_length``: Σ_i Σ_t v_it / (sequences · max_length) (Dr. GRPO, arXiv 2503.20783).

    Args:
      values: [N, T] float. mask: [N, T] bool.
      aggregation: one of ``AGGREGATIONS``.
      denominator: scalar, the global sum of ``local_count``; 0 is taken as 1.
      max_length: static length, ``constant_length`` only.
    """
    _check(aggregation)
    if (max_length is not None) != (aggregation == "constant_length"):
        raise ValueError(
            "max_length belongs to aggregation='constant_length' and is required there; got "
            f"aggregation={aggregation!r}, max_length={max_length}"
        )
    values = ops.as_float(values)
    if values.ndim != 2 or jnp.shape(mask) != values.shape:
        raise ValueError(
            f"values and mask must both be [N, T]; got {values.shape} and {jnp.shape(mask)}"
        )
    if aggregation == "sequence_mean":
        total = ops.masked_mean(values, mask, axis=1).sum()
    else:
        total = ops.masked_sum(values, mask)
    if max_length is not None:
        total = total / max_length
    return total / jnp.maximum(jnp.asarray(denominator).astype(values.dtype), 1)


def _check(aggregation: str) -> None:
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {aggregation!r}; choose from {AGGREGATIONS}")
