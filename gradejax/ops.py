"""Numerical rules every layer shares, written once.

Three rules hold throughout:

* **Precision.** float64 inputs stay float64; half precision is raised to float32; integers and
  booleans take JAX's default float (float32, or float64 when x64 is on). Softmaxes and sums in
  bfloat16 lose the small differences that log-ratios are made of.
* **Double where.** A guarded ``log`` or division selects a safe *input* as well as a safe output:
  with only the outer ``where`` the discarded branch still sends ``0 * inf = nan`` backwards.
* **Masks are selections, not factors.** Masked entries go through ``where``, so a NaN or an
  infinity in padding is inert (``0 * nan`` would not be).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def as_float(x) -> Array:
    """Returns ``x`` as float32 or wider: float64 is kept, everything else converted."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jax.dtypes.canonicalize_dtype(np.float64))
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def expand_mask(mask, x: Array) -> Array:
    """Broadcasts ``mask`` to the shape of ``x``; one of lower rank covers the *leading* axes."""
    mask = jnp.asarray(mask).astype(bool)
    if mask.ndim > x.ndim:
        raise ValueError(f"mask has more axes than its values: mask {mask.shape}, values {x.shape}")
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return jnp.broadcast_to(mask, x.shape)


def masked_sum(x, mask, axis=None) -> Array:
    """Sums ``x`` over ``axis`` where ``mask`` is true; an empty selection gives 0.

    Args:
      x: values, any shape; masked entries may hold anything, NaN included.
      mask: boolean, the shape of ``x`` or of its leading axes (axes of size 1 broadcast).
      axis: int, tuple of ints or None (all axes).
    """
    x = as_float(x)
    return jnp.where(expand_mask(mask, x), x, 0.0).sum(axis)


def masked_mean(x, mask, axis=None) -> Array:
    """Averages ``x`` over ``axis`` where ``mask`` is true; an empty selection gives 0, not NaN.

    Not for a loss whose batch is cut into micro-batches or over devices: a mean of means weighs
    the pieces wrongly. There, sum with ``masked_sum`` and divide once by the global count.
    """
    x = as_float(x)
    count = expand_mask(mask, x).sum(axis).astype(x.dtype)
    return masked_sum(x, mask, axis) / jnp.maximum(count, 1.0)


def safe_divide(numerator, denominator) -> Array:
    """``numerator / denominator`` where the denominator is not 0, else 0 with a zero gradient."""
    numerator, denominator = as_float(numerator), as_float(denominator)
    valid = denominator != 0
    return jnp.where(valid, numerator / jnp.where(valid, denominator, 1.0), 0.0)


def safe_log(x, floor: float | None = None) -> Array:
    """``log x``; below the smallest normal number ``floor`` with a zero gradient.

    Args:
      x: values >= 0.
      floor: value at 0; by default the log of the smallest normal number (-87.3 in float32), so
        that ``p * log p`` is 0 at ``p = 0`` and stays differentiable.
    """
    x = as_float(x)
    tiny = jnp.finfo(x.dtype).tiny
    positive = ~(x < tiny)  # written so that NaN counts as positive and stays visible
    lowest = float(np.log(tiny)) if floor is None else floor
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), lowest)


def log1mexp(x) -> Array:
    """``log(1 - exp(x))`` for ``x <= 0``; -inf with a zero gradient at 0.

    Uses ``log(-expm1(x))`` near 0 and ``log1p(-exp(x))`` below ``-log 2`` (Maechler 2012,
    "Accurately computing log(1 - exp(-|a|))"): either alone loses all digits in the other's
    range.
    """
    x = as_float(x)
    negative = ~(x >= 0)
    near = x > -np.log(2.0)
    near_x = jnp.where(negative & near, x, -1.0)
    far_x = jnp.where(negative & ~near, x, -1.0)
    value = jnp.where(near, jnp.log(-jnp.expm1(near_x)), jnp.log1p(-jnp.exp(far_x)))
    return jnp.where(negative, value, -jnp.inf)


def _allowed(logits: Array, mask) -> Array:
    """Entries in the mask and not -inf; a NaN takes part, so that it stays visible."""
    present = ~jnp.isneginf(logits)
    return present if mask is None else present & expand_mask(mask, logits)


def log_normalizer(logits, mask=None, axis: int = -1) -> Array:
    """Log-sum-exp of the allowed ``logits``; -inf with a zero gradient when nothing is allowed.

    A logit of -inf counts as not allowed.
    """
    logits = as_float(logits)
    allowed = _allowed(logits, mask)
    some = allowed.any(axis, keepdims=True)
    kept = jnp.where(allowed, logits, -jnp.inf)
    # With nothing allowed the row is replaced by zeros: logsumexp of all -inf has a NaN gradient.
    value = jax.nn.logsumexp(jnp.where(some, kept, 0.0), axis=axis)
    return jnp.where(some.squeeze(axis), value, -jnp.inf)


def masked_log_softmax(logits, mask=None, axis: int = -1) -> Array:
    """Log-probabilities over the allowed entries of ``axis``; -inf at all others.

    Gradients at forbidden entries are exactly 0. A logit of -inf counts as not allowed.
    """
    logits = as_float(logits)
    allowed = _allowed(logits, mask)
    return _log_softmax(jnp.where(allowed, logits, 0.0), allowed, axis)


# The derivatives of this and the next functions are written out, exact at every point: what
# autodiff makes of the guards below is several times as many kernels to compile.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _log_softmax(logits, allowed, axis):
    highest = jnp.where(allowed, logits, -jnp.inf).max(axis, keepdims=True)
    shifted = logits - jnp.where(jnp.isneginf(highest), 0.0, highest)
    total = jnp.where(allowed, jnp.exp(shifted), 0.0).sum(axis, keepdims=True)
    return jnp.where(allowed, shifted - jnp.log(total), -jnp.inf)


@_log_softmax.defjvp
def _log_softmax_jvp(axis, primals, tangents):
    logits, allowed = primals
    value = _log_softmax(logits, allowed, axis)
    step = jnp.where(allowed, tangents[0], 0.0)
    mean = (jnp.exp(value) * step).sum(axis, keepdims=True)
    return value, jnp.where(allowed, step - mean, 0.0)


@jax.custom_jvp
def log_sigmoids(logits) -> tuple[Array, Array]:
    """``log p`` and ``log(1 - p)`` of Bernoulli logits, each to working precision at any size."""
    tail = jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.minimum(logits, 0.0) - tail, jnp.minimum(-logits, 0.0) - tail


@log_sigmoids.defjvp
def _log_sigmoids_jvp(primals, tangents):
    on, off = log_sigmoids(*primals)
    return (on, off), (jnp.exp(off) * tangents[0], -jnp.exp(on) * tangents[0])


def log_normalizer_nonempty(logits, mask=None, axis: int = -1) -> Array:
    """Log-probability that at least one allowed Bernoulli is 1: ``log(1 - prod_i (1 - p_i))``.

    Computed as ``log1mexp(sum log sigmoid(-s))``. Once the sum of the probabilities is below
    rounding it equals ``logsumexp(log sigmoid(s))`` to working precision, and that form is used
    there: it stays finite, with the right gradient, for logits of any size (the plain form has
    infinite gradients from -20 in float32).

    Args:
      logits: independent Bernoulli logits.
      mask: allowed entries, the shape of ``logits`` or of its leading axes; a logit of -inf is
        not allowed either.
      axis: axis of the set.

    Returns:
      The log-normaliser, <= 0; 0 with a zero gradient where nothing is allowed (there is no event
      to condition on, so that callers can subtract it from rows that are padding).
    """
    logits = as_float(logits)
    allowed = _allowed(logits, mask)
    logits, allowed = jnp.moveaxis(logits, axis, -1), jnp.moveaxis(allowed, axis, -1)
    return log_normalizers_nonempty(logits, allowed[..., None, :])[..., 0]


def log_normalizers_nonempty(logits, masks) -> Array:
    """``log_normalizer_nonempty`` of several sets of the same Bernoullis.

    Args:
      logits: [..., A].
      masks: bool [..., K, A], the allowed entries of each set.

    Returns:
      [..., K].
    """
    logits = as_float(logits)
    somewhere = masks.any(-2)
    return _log_some(jnp.where(somewhere, logits, 0.0), masks)


@jax.custom_jvp
def _log_some(logits, masks):
    return _log_none_and_some(logits, masks)[1]


def _log_none_and_some(logits, masks):
    on, off = log_sigmoids(logits)
    log_none = jnp.where(masks, off[..., None, :], 0.0).sum(-1)
    kept = jnp.where(masks, on[..., None, :], -jnp.inf)
    highest = jnp.where(masks.any(-1), kept.max(-1), 0.0)
    # With all p below rounding, log Z = log sum p: no p is close to 1, so on = log p.
    limit = highest + jnp.log(jnp.exp(kept - highest[..., None]).sum(-1))
    rare = log_none > -jnp.finfo(logits.dtype).eps
    common = jnp.where(
        log_none > -np.log(2.0), jnp.log(-jnp.expm1(log_none)), jnp.log1p(-jnp.exp(log_none))
    )
    value = jnp.where(rare, limit, common)
    return log_none, jnp.where(masks.any(-1), value, 0.0)


@_log_some.defjvp
def _log_some_jvp(primals, tangents):
    # d log Z / d s_i = p_i prod_j (1 - p_j) / Z, in logs: exact in both regimes.
    logits, masks = primals
    log_none, value = _log_none_and_some(logits, masks)
    on, _ = log_sigmoids(logits)
    slope = jnp.where(masks, jnp.exp(on[..., None, :] + (log_none - value)[..., None]), 0.0)
    return value, (slope * tangents[0][..., None, :]).sum(-1)


def token_logprobs(logits, tokens, *, temperature: float = 1.0, allowed=None) -> Array:
    """Log-probabilities of given tokens under the *sampling* distribution.

    ``log softmax(logits / temperature)`` over the allowed vocabulary. The policy, the old policy
    and the reference must all use the sampler's temperature and kept set, or ratios differ from 1
    on unchanged weights.

    Args:
      logits: [..., V]; half precision is raised to float32 before the log-softmax.
      tokens: [...] integers in [0, V). A token outside the range gives NaN: padding needs a valid
        id and a mask.
      temperature: > 0.
      allowed: optional bool [..., V]: the set the sampler kept (top-k, top-p, rows that are real
        tokens).

    Returns:
      [...] float32 (float64 for float64 logits); -inf for a token that is not allowed.
    """
    logits, tokens = as_float(logits), jnp.asarray(tokens)
    if logits.shape[:-1] != tokens.shape:
        raise ValueError(
            f"tokens must have the shape of the logits without V, {logits.shape[:-1]}; "
            f"got {tokens.shape}"
        )
    if isinstance(temperature, (int, float)) and temperature <= 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; greedy has no log-probs")
    logits = logits / temperature
    if allowed is None:
        total = jax.nn.logsumexp(logits, axis=-1)
        scores = logits
    else:
        allowed = jnp.broadcast_to(jnp.asarray(allowed, bool), logits.shape)
        total = log_normalizer(logits, allowed)
        total = jnp.where(jnp.isneginf(total), 0.0, total)
        scores = jnp.where(allowed, logits, -jnp.inf)
    # Negative indices would wrap to the last token; sent out of range they fill with NaN too.
    index = jnp.where(tokens < 0, logits.shape[-1], tokens)
    return jnp.take_along_axis(scores, index[..., None], axis=-1, mode="fill")[..., 0] - total


def straight_through(hard, soft) -> Array:
    """The value of ``hard``, bit for bit, with the gradient of ``soft`` (Bengio et al. 2013).

    Written ``hard + (soft - stop(soft))``: the usual ``soft + stop(hard - soft)`` is off by
    rounding where the two differ in size.
    """
    soft = as_float(soft)
    hard = jax.lax.stop_gradient(jnp.asarray(hard).astype(soft.dtype))
    return hard + (soft - jax.lax.stop_gradient(soft))


def global_sum(x, axis_name: str | None) -> Array:
    """``x`` summed over the devices of ``axis_name``; ``x`` itself when there is no such axis.

    Only for values without a gradient (counts, statistics, finished gradients): inside pmap the
    gradient of a psum is again a psum, so a differentiated psum is counted once per device.
    """
    return x if axis_name is None else jax.lax.psum(x, axis_name)
