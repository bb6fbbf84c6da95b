"""Policy-gradient losses: clipped surrogates over components, decisions or tokens; REINFORCE.

Arrays in, (loss, stats) out. Losses are local sums over a *global* count, so that they add up
over micro-batches and devices; stats are sums and counts for the same reason.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax import ops
from gradejax.objectives import aggregation as aggregation_lib

Array = jax.Array

RATIOS = ("component", "decision")
TOKEN_RATIOS = ("sequence", "token")
LOG_RATIO_BOUND = 20.0


@flax.struct.dataclass
class SurrogateStats:
    """Per-column sums ([K]; K = 1 for token losses). Divide by ``count`` when reported."""

    count: Array  # [K] int32, terms that took part
    clipped: Array  # [K] int32, of these, terms whose bound was active (side by the sign of A)
    ratio_sum: Array  # [K] float, sum of the importance ratios
    max_abs_log_ratio: Array  # [] float, before the bound; 0 on unchanged weights (combine by max)


def log_ratios(log_prob, old_log_prob, mask, component_of: tuple[int, ...], *, num_components: int,
               ratio: str = "component") -> tuple[Array, Array]:
    """Forms log-ratios of a rollout's decisions, per component or per decision.

    GRADE (arXiv 2607.10836): ϱ_ik = exp(Σ_{decisions in k} (log π − log π_old)). ``"decision"``
    leaves each sequential conditional a ratio of its own.

    Args:
      log_prob: [N, D] log-probability of each decision under the trained policy.
      old_log_prob: [N, D] the same under the sampling policy; no gradient flows through it.
      mask: [N, D] bool; False for decisions that were forced or not made.
      component_of: D component indices in [0, num_components), static.
      num_components: K.
      ratio: one of ``RATIOS``.

    Returns:
      (log_ratio, took_part): [N, K] for ``"component"``, [N, D] for ``"decision"``.
    """
    if ratio not in RATIOS:
        raise ValueError(f"unknown ratio {ratio!r}; choose from {RATIOS}")
    log_prob = ops.as_float(log_prob)
    if len(component_of) != log_prob.shape[-1]:
        raise ValueError(
            f"component_of must name the component of each of {log_prob.shape[-1]} decisions, "
            f"got {len(component_of)}"
        )
    mask = ops.expand_mask(mask, log_prob)
    old_log_prob = jax.lax.stop_gradient(ops.as_float(old_log_prob))
    difference = jnp.where(mask, log_prob, 0.0) - jnp.where(mask, old_log_prob, 0.0)
    if ratio == "decision":
        return difference, mask
    # Static columns, summed: a matrix product with a one-hot may round its inputs to 10 bits, and
    # a segment sum is a scatter.
    columns = [
        [i for i, k in enumerate(component_of) if k == component]
        for component in range(num_components)
    ]
    summed = jnp.stack([_columns(difference, at).sum(-1) for at in columns], axis=-1)
    return summed, jnp.stack([_columns(mask, at).any(-1) for at in columns], axis=-1)


def _columns(x, at: list[int]):
    """x[:, at]; a slice where they lie side by side."""
    if at and at == list(range(at[0], at[-1] + 1)):
        return x[:, at[0] : at[-1] + 1]
    return x[:, np.array(at, int)]


def clipped_surrogate(log_ratio, advantages, took_part, *, clip_low: float, clip_high: float,
                      denominator, log_ratio_bound: float = LOG_RATIO_BOUND):
    """L = −(1/N) Σ_i Σ_k took_part_ik · min(ϱ_ik A_i, clip(ϱ_ik, 1 − low, 1 + high) A_i).

    GRADE (arXiv 2607.10836, CoGRPO) over components k; PPO (arXiv 1707.06347, eq. 7) with K = 1.
    N is the number of valid rollouts on all devices. The sum over k is *not* divided by the number
    of components that took part: which components take part is itself an action (depth 0 uses
    one), so dividing would weigh its own score by the choice and prefer shallow rollouts.

    The log-ratio is bounded before exp, with gradient 0 beyond the bound [departure from PPO]: an
    overflow would make the loss inf and, through 0 · inf, the gradient NaN. At ratio 1 the
    gradient is that of REINFORCE.

    Args:
      log_ratio: [N, K] log π − log π_old; gradient flows through it.
      advantages: [N] or [N, K]; no gradient.
      took_part: [N, K] bool; False everywhere in padding rows. Masked entries are inert.
      clip_low, clip_high: half-widths >= 0; ``inf`` turns the side off.
      denominator: scalar, the global count of valid rollouts (an array: it may come from a psum);
        0 is taken as 1.
      log_ratio_bound: > 0, in nats.

    Returns:
      (loss, SurrogateStats).
    """
    log_ratio = ops.as_float(log_ratio)
    objective, stats = _clipped_terms(
        log_ratio, advantages, took_part, clip_low, clip_high, log_ratio_bound
    )
    return -_over(objective.sum(), denominator), stats


def token_surrogate(log_ratio, advantages, mask, *, clip_low: float, clip_high: float,
                    aggregation: str, denominator, ratio: str = "token",
                    max_length: int | None = None, log_ratio_bound: float = LOG_RATIO_BOUND):
    """Clipped surrogate of token sequences.

    ``ratio="token"`` clips each token (GRPO, arXiv 2402.03300). ``ratio="sequence"`` clips
    ϱ_i = exp(mean of the unmasked log-ratios) once per answer (GSPO, arXiv 2507.18071) and
    averages over answers; it exists with ``aggregation="sequence_mean"`` only, so that an answer
    is never counted once per token.

    Args:
      log_ratio: [N, T] per token. mask: [N, T] bool.
      advantages: [N], or [N, T] with ``ratio="token"``; no gradient.
      clip_low, clip_high, log_ratio_bound: as in ``clipped_surrogate``.
      aggregation: one of ``aggregation.AGGREGATIONS``.
      denominator: scalar, the global sum of ``aggregation.local_count``.
      ratio: one of ``TOKEN_RATIOS``.
      max_length: static length, ``constant_length`` only.

    Returns:
      (loss, SurrogateStats) with one column.
    """
    if ratio not in TOKEN_RATIOS:
        raise ValueError(f"unknown ratio {ratio!r}; choose from {TOKEN_RATIOS}")
    log_ratio = ops.as_float(log_ratio)
    mask = jnp.asarray(mask, bool)
    if ratio == "sequence":
        if aggregation != "sequence_mean":
            raise ValueError(
                "ratio='sequence' needs aggregation='sequence_mean' (one term per answer), "
                f"got {aggregation!r}"
            )
        if jnp.ndim(advantages) != 1:
            raise ValueError(
                f"ratio='sequence' needs advantages [N], got shape {jnp.shape(advantages)}"
            )
        mean = ops.masked_mean(log_ratio, mask, axis=1)
        return clipped_surrogate(
            mean[:, None], advantages, mask.any(1)[:, None], clip_low=clip_low,
            clip_high=clip_high, denominator=denominator, log_ratio_bound=log_ratio_bound,
        )
    objective, stats = _clipped_terms(
        log_ratio, advantages, mask, clip_low, clip_high, log_ratio_bound
    )
    loss = -aggregation_lib.aggregate(
        objective, mask, aggregation=aggregation, denominator=denominator, max_length=max_length
    )
    return loss, SurrogateStats(
        count=stats.count.sum(keepdims=True),
        clipped=stats.clipped.sum(keepdims=True),
        ratio_sum=stats.ratio_sum.sum(keepdims=True),
        max_abs_log_ratio=stats.max_abs_log_ratio,
    )


def reinforce_loss(log_prob, advantages, took_part, *, denominator) -> Array:
    """L = −(1/N) Σ_i A_i Σ_k took_part_ik log π_ik (Williams 1992).

    Args:
      log_prob: [N, K] log-probabilities of the decisions. took_part: [N, K] bool.
      advantages: [N] or [N, K]; no gradient.
      denominator: scalar, the global count of valid rollouts; 0 is taken as 1.
    """
    log_prob = ops.as_float(log_prob)
    took_part = _same_shape(took_part, log_prob)
    advantages = _advantages(advantages, took_part, log_prob)
    terms = jnp.where(took_part, log_prob, 0.0) * advantages
    return -_over(terms.sum(), denominator)


def _clipped_terms(log_ratio, advantages, took_part, clip_low, clip_high, bound):
    """The objective of every term [N, K] (0 where masked) and per-column stats."""
    if clip_low < 0 or clip_high < 0 or not bound > 0:
        raise ValueError(
            "clip_low and clip_high must be >= 0 and log_ratio_bound > 0; got "
            f"{clip_low}, {clip_high}, {bound}"
        )
    took_part = _same_shape(took_part, log_ratio)
    advantages = _advantages(advantages, took_part, log_ratio)
    log_ratio = jnp.where(took_part, log_ratio, 0.0)
    ratio = jnp.exp(jnp.clip(log_ratio, -bound, bound))
    above = (advantages > 0) & (ratio > 1 + clip_high)
    below = (advantages < 0) & (ratio < 1 - clip_low)
    # min(ϱA, clip(ϱ)A) written as the choice it makes: the same value, and no tie at which `min`
    # would split the gradient between a live and a dead branch.
    limited = jnp.where(above, 1 + clip_high, jnp.where(below, 1 - clip_low, ratio))
    objective = jnp.where(took_part, limited * advantages, 0.0)
    fixed = jax.lax.stop_gradient(ratio)
    return objective, SurrogateStats(
        count=took_part.sum(0, dtype=jnp.int32),
        clipped=((above | below) & took_part).sum(0, dtype=jnp.int32),
        ratio_sum=jnp.where(took_part, fixed, 0.0).sum(0),
        max_abs_log_ratio=jnp.abs(jax.lax.stop_gradient(log_ratio)).max(initial=0.0),
    )


def _same_shape(took_part, values: Array) -> Array:
    took_part = jnp.asarray(took_part, bool)
    if values.ndim != 2 or took_part.shape != values.shape:
        raise ValueError(
            f"values and their mask must both be [N, K]; got {values.shape}, {took_part.shape}"
        )
    return took_part


def _advantages(advantages, took_part: Array, like: Array) -> Array:
    """Advantages as [N, K], without gradient, 0 where masked."""
    advantages = jax.lax.stop_gradient(ops.as_float(advantages)).astype(like.dtype)
    if advantages.ndim == 1:
        advantages = advantages[:, None]
    if advantages.shape not in (like.shape, (like.shape[0], 1)):
        raise ValueError(
            f"advantages must be [N] or [N, K] for values {like.shape}, got {advantages.shape}"
        )
    return jnp.where(took_part, jnp.broadcast_to(advantages, like.shape), 0.0)


def _over(total: Array, denominator) -> Array:
    return total / jnp.maximum(jnp.asarray(denominator).astype(total.dtype), 1)
