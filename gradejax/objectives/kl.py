"""Kullback–Leibler divergences KL(π ‖ π_ref): exact where the distribution is small, else sampled.

**Gradients of the sampled estimators** (samples from π, d = log π_ref − log π, differentiated
directly, as a loss term):

=====  ==============  ====================  ==================================================
name   value           mean under π          expected gradient
=====  ==============  ====================  ==================================================
k1     −d              KL(π ‖ π_ref)         0: the term would have no effect at all
k2     d²/2            ≈ KL                  ∇KL(π ‖ π_ref), exact
k3     e^d − d − 1     KL(π ‖ π_ref), >= 0   ∇KL(π_ref ‖ π), the *other* direction
=====  ==============  ====================  ==================================================

Multiplied by the importance ratio π/stop(π_old), k1 and k3 have the exact gradient ∇KL(π ‖ π_ref).
Estimators: J. Schulman, "Approximating KL divergence" (2020).
"""

import jax
import jax.numpy as jnp

from gradejax import ops
from gradejax.objectives import aggregation as aggregation_lib

Array = jax.Array

ESTIMATORS = ("k1", "k2", "k3")
LOG_RATIO_BOUND = 20.0


def bernoulli_kl(logits, ref_logits, mask=None) -> Array:
    """Exact KL of independent Bernoullis given by logits, element by element.

    Args:
      logits, ref_logits: same shape. Equal infinite logits (a decision certain in both) give 0.
      mask: optional bool, the shape of the logits or of its leading axes; masked entries give 0
        with a zero gradient.

    Returns:
      Same shape, >= 0 and exactly 0 where the logits are equal; inf where π may do what π_ref
      never does.
    """
    logits, ref_logits = _pair(logits, ref_logits)
    live = ~((logits == ref_logits) & jnp.isinf(logits))
    if mask is not None:
        live = live & ops.expand_mask(mask, logits)
    a, b = jnp.where(live, logits, 0.0), jnp.where(live, ref_logits, 0.0)
    on = _weighted(jax.nn.sigmoid(a), jax.nn.log_sigmoid(a), jax.nn.log_sigmoid(b))
    off = _weighted(jax.nn.sigmoid(-a), jax.nn.log_sigmoid(-a), jax.nn.log_sigmoid(-b))
    return _not_negative(on + off)


def categorical_kl(logits, ref_logits, mask=None, axis: int = -1) -> Array:
    """Exact KL of categoricals given by logits, both renormalised over the allowed categories.

    Args:
      logits, ref_logits: same shape; the last axis (``axis``) holds the categories. A logit of
        -inf is a category that cannot occur.
      mask: optional bool, same shape or its leading axes: categories allowed (for both).
      axis: axis of the categories.

    Returns:
      The shape without ``axis``, >= 0 and exactly 0 for equal logits; 0 with a zero gradient for
      rows with nothing allowed; inf where π may do what π_ref never does.
    """
    logits, ref_logits = _pair(logits, ref_logits)
    if mask is not None:
        mask = ops.expand_mask(mask, logits)
    log_p = ops.masked_log_softmax(logits, mask, axis)
    log_q = ops.masked_log_softmax(ref_logits, mask, axis)
    return _not_negative(_weighted(jnp.exp(log_p), log_p, log_q).sum(axis))


def kl_estimate(log_prob, ref_log_prob, *, estimator: str = "k3",
                bound: float = LOG_RATIO_BOUND) -> Array:
    """Sampled estimate of KL(π ‖ π_ref) for each drawn action, for logging.

    Args:
      log_prob, ref_log_prob: same shape, log-probabilities of the *drawn* actions under π and
        π_ref. Passed the other way round k3 has another value.
      estimator: one of ``ESTIMATORS``.
      bound: d is clipped to ±bound before exp.

    Returns:
      Same shape. Its own gradient is the module's table; to train on it use ``kl_loss``.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown KL estimator {estimator!r}; choose from {ESTIMATORS}")
    log_prob, ref_log_prob = _pair(log_prob, ref_log_prob)
    d = jnp.clip(jax.lax.stop_gradient(ref_log_prob) - log_prob, -bound, bound)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return 0.5 * d**2
    return jnp.expm1(d) - d  # expm1: exp(d) − 1 loses d²/2, the whole value, for small d


def kl_loss(log_prob, ref_log_prob, mask, *, aggregation: str, denominator,
            estimator: str = "k3", log_ratio=None, max_length: int | None = None,
            bound: float = LOG_RATIO_BOUND) -> Array:
    """Averages a sampled KL over unmasked tokens, as a loss term.

    Args:
      log_prob, ref_log_prob: [N, T]. mask: [N, T] bool; masked entries are inert.
      aggregation, denominator, max_length: as in ``aggregation.aggregate``.
      estimator: ``"k2"`` or ``"k3"``; ``"k1"`` only together with ``log_ratio``, since
        differentiated directly its expected gradient is 0.
      log_ratio: optional [N, T], log π − log π_old with its gradient: the estimate is multiplied
        by exp(log_ratio), which makes the gradient of k1 and k3 that of KL(π ‖ π_ref).
      bound: both exponents are clipped to ±bound.

    Raises:
      ValueError: for ``estimator="k1"`` without ``log_ratio``.
    """
    if estimator == "k1" and log_ratio is None:
        raise ValueError(
            "k1 differentiated as a loss has an expected gradient of 0, so its weight would do "
            "nothing; choose from ('k2', 'k3'), or pass log_ratio"
        )
    log_prob, ref_log_prob = _pair(log_prob, ref_log_prob)
    mask = ops.expand_mask(mask, log_prob)
    log_prob = jnp.where(mask, log_prob, 0.0)
    ref_log_prob = jnp.where(mask, ref_log_prob, 0.0)
    values = kl_estimate(log_prob, ref_log_prob, estimator=estimator, bound=bound)
    if log_ratio is not None:
        log_ratio = jnp.where(mask, ops.as_float(log_ratio), 0.0)
        values = values * jnp.exp(jnp.clip(log_ratio, -bound, bound))
    return aggregation_lib.aggregate(
        values, mask, aggregation=aggregation, denominator=denominator, max_length=max_length
    )


def _pair(x, y) -> tuple[Array, Array]:
    x, y = ops.as_float(x), ops.as_float(y)
    if x.shape != y.shape:
        raise ValueError(f"policy and reference must have one shape; got {x.shape} and {y.shape}")
    return x, y


def _weighted(p: Array, log_p: Array, log_q: Array) -> Array:
    """p (log p − log q), 0 where p is 0 (also where both logs are infinite)."""
    some = ~(p <= 0)
    return jnp.where(some, p * (jnp.where(some, log_p, 0.0) - jnp.where(some, log_q, 0.0)), 0.0)


def _not_negative(value: Array) -> Array:
    """Lifts a value that rounding pushed below 0, leaving its gradient alone."""
    return value + jax.lax.stop_gradient(jnp.where(value < 0, -value, 0.0))
