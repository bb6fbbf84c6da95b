"""Group-relative advantages: one estimator for all systems, keyed by group id.

The systems differ in the grouping key, the baseline and the scale only (who *receives* the
advantage is the caller's affair). Rows are grouped by the id they carry, never by position, so
shuffling, padding or cutting the batch over devices changes nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax import ops

Array = jax.Array

BASELINES = ("group_mean", "leave_one_out", "batch", "ema", "none")
SCALES = ("std", "none")

# Rewards that are equal on paper differ by a few units in the last place once they are sums; a
# spread of that size relative to the largest reward is no spread, and would otherwise be divided
# by itself and come out as an advantage of order 1.
ROUNDING_ULPS = 4


@flax.struct.dataclass
class AdvantageStats:
    """Sums and counts, to be divided when reported. "Groups" are the sets the baseline is over.

    With ``axis_name`` they cover all devices already: do not sum them again.
    """

    rows: Array  # [] int32, rows with mask true
    groups: Array  # [] int32, groups with at least one such row
    zero_spread_groups: Array  # [] int32, groups whose rewards are all equal (single ones included)
    single_groups: Array  # [] int32, groups with one row
    zero_spread_rows: Array  # [] int32, rows in zero-spread groups
    reward_sum: Array  # [] float, over rows
    std_sum: Array  # [] float, sum of the groups' spreads (over groups)
    abs_advantage_sum: Array  # [] float, over rows


def validate_groups(group_ids, mask, group_size: int) -> None:
    """Raises ValueError unless every group has ``group_size`` rows (host side, not traceable).

    Masked rows count (a rollout that could not be scored is still a member); ids that occur in
    masked rows only are padding and are ignored.

    Args:
      group_ids: [N] integers.
      mask: [N] bool.
      group_size: rows each group must have.
    """
    ids, mask = np.asarray(group_ids), np.asarray(mask).astype(bool)
    if ids.ndim != 1 or ids.shape != mask.shape:
        raise ValueError(
            f"group_ids and mask must share one axis [N]; got {ids.shape} and {mask.shape}"
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"group_ids must be integers, got {ids.dtype}")
    real, sizes = np.unique(ids[np.isin(ids, ids[mask])], return_counts=True)
    wrong = [(int(i), int(n)) for i, n in zip(real, sizes, strict=True) if n != group_size]
    if wrong:
        shown = ", ".join(f"id {i} has {n}" for i, n in wrong[:5])
        raise ValueError(
            f"every group must have {group_size} rows; {len(wrong)} of {len(real)} do not: {shown}"
        )


def dense_group_ids(group_ids, mask, num_groups: int) -> Array:
    """Maps arbitrary integer ids to 0..num_groups-1 in the order of the ids.

    Args:
      group_ids: [N] integers, any values.
      mask: [N] bool; masked rows take no id.
      num_groups: static upper bound on the number of distinct ids among unmasked rows.

    Returns:
      [N] int32; ``num_groups`` for masked rows, larger for groups beyond the bound.
    """
    ids, mask = jnp.asarray(group_ids), jnp.asarray(mask).astype(bool)
    order = jnp.lexsort((ids, ~mask))  # masked rows last, whatever their id
    sorted_ids, sorted_mask = ids[order], mask[order]
    starts = jnp.concatenate([jnp.zeros((1,), bool), sorted_ids[1:] != sorted_ids[:-1]])
    rank = jnp.cumsum(starts & sorted_mask, dtype=jnp.int32)
    rank = jnp.where(rank >= num_groups, rank + 1, rank)  # num_groups itself means masked
    rank = jnp.where(sorted_mask, rank, num_groups)
    return jnp.zeros(ids.shape, jnp.int32).at[order].set(rank, unique_indices=True)


def group_relative(
    rewards,
    group_ids,
    mask,
    *,
    num_groups: int,
    baseline: str = "group_mean",
    scale: str = "std",
    std_floor: float = 0.0,
    ddof: int = 0,
    ema=None,
    group_size: int | None = None,
    axis_name: str | None = None,
) -> tuple[Array, AdvantageStats]:
    """Computes A_i = (R_i − b_i) / max(σ_i, σ_min) with the baseline b and spread σ of a group.

    GRADE (arXiv 2607.10836, CoGRPO) is ``group_mean``/``std`` with ``ddof=0``; its printed form
    has no floor (``std_floor=0``). ``leave_one_out`` is R_i minus the mean of the *other* rows,
    n/(n−1) times the group-mean form (Kool et al. 2019; unbiased). ``batch``, ``ema`` and
    ``none`` treat all rows as one group: baseline the batch mean, ``ema``, or 0, and the spread
    that of the batch.

    Conventions: a group whose rewards are all equal (max == min, tested on the rewards; a spread
    within ``ROUNDING_ULPS`` counts) gets exactly 0 for every baseline that is itself a mean, and
    so does a group of one. A spread of 0 with ``std_floor=0`` gives 0 for all baselines. Statistics
    need the whole group, hence no ``vmap`` form. No gradient flows through the result.

    Args:
      rewards: [N] float; masked rows may hold anything.
      group_ids: [N] int, arbitrary values.
      mask: [N] bool; False for padding and for rollouts that could not be scored.
      num_groups: static upper bound on distinct ids among unmasked rows (over all devices when
        ``axis_name`` is given). Rows of groups beyond the bound get NaN, never another group's
        statistics.
      baseline: one of ``BASELINES``.
      scale: one of ``SCALES``.
      std_floor: σ_min >= 0, in units of reward.
      ddof: 0 divides the squared deviations by n, 1 by n − 1.
      ema: scalar running mean of the rewards, required by ``baseline="ema"``.
      group_size: if given and the ids are concrete, ``validate_groups`` runs; under ``jit`` call
        that function on the host instead.
      axis_name: mapped axis; rows are gathered over it, so a group may lie on several devices.

    Returns:
      advantages [N] in the dtype of the rewards, 0 in masked rows; AdvantageStats.
    """
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; choose from {BASELINES}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; choose from {SCALES}")
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    if (ema is not None) != (baseline == "ema"):
        raise ValueError(f"ema must be given with baseline='ema' only; baseline is {baseline!r}")
    rewards = jax.lax.stop_gradient(ops.as_float(rewards))
    ids, mask = jnp.asarray(group_ids), jnp.asarray(mask).astype(bool)
    if rewards.ndim != 1 or not rewards.shape == ids.shape == mask.shape:
        raise ValueError(
            "rewards, group_ids and mask must share one axis [N]; got "
            f"{rewards.shape}, {ids.shape}, {mask.shape}"
        )
    traced = isinstance(ids, jax.core.Tracer) or isinstance(mask, jax.core.Tracer)
    if group_size is not None and not traced:
        validate_groups(ids, mask, group_size)
    own_rows = rewards.shape[0]
    if axis_name is not None:
        # A few hundred scalars: gathering them keeps every statistic that of the whole batch,
        # wherever the rows of a group lie.
        rewards, ids, mask = (
            jax.lax.all_gather(x, axis_name, tiled=True) for x in (rewards, ids, mask)
        )
    if baseline in ("batch", "ema", "none"):
        ids, num_groups = jnp.zeros_like(ids), 1

    rewards = jnp.where(mask, rewards, 0.0)
    # Sorted by (group, reward), so that sums run in the same order however the rows came.
    segment = dense_group_ids(ids, mask, num_groups)
    order = jnp.lexsort((rewards, segment))
    advantages, stats = _by_segment(
        rewards[order], segment[order], num_groups, baseline, scale, std_floor, ddof, ema
    )
    advantages = jnp.zeros_like(advantages).at[order].set(advantages, unique_indices=True)
    if axis_name is not None:
        start = jax.lax.axis_index(axis_name) * own_rows
        advantages = jax.lax.dynamic_slice_in_dim(advantages, start, own_rows)
    return jax.lax.stop_gradient(advantages), stats


def grouped(rewards, mask, *, baseline: str = "group_mean", scale: str = "std",
            std_floor: float = 0.0, ddof: int = 0) -> tuple[Array, AdvantageStats]:  # fmt: skip
    """``group_relative`` of groups that lie in rows: the same values, without sorting or scatters.

    Args:
      rewards: [Q, G] float, one group a row.
      mask: [Q, G] bool.
      baseline: "group_mean" or "leave_one_out"; the others are over the whole batch.
      scale, std_floor, ddof: as in ``group_relative``.

    Returns:
      advantages [Q, G] and AdvantageStats (a row without any unmasked entry is no group).
    """
    if baseline not in ("group_mean", "leave_one_out"):
        raise ValueError(f"grouped has baselines group_mean and leave_one_out; got {baseline!r}")
    rewards = jax.lax.stop_gradient(ops.as_float(rewards))
    mask = jnp.asarray(mask).astype(bool)
    if rewards.ndim != 2 or rewards.shape != mask.shape:
        raise ValueError(
            f"rewards and mask must both be [Q, G]; got {rewards.shape} and {mask.shape}"
        )
    advantages, stats = _relative(
        jnp.where(mask, rewards, 0.0), mask,
        _Reductions(
            total=lambda x: x.sum(1),
            highest=lambda x: jnp.where(mask, x, -jnp.inf).max(1),
            lowest=lambda x: jnp.where(mask, x, jnp.inf).min(1),
            to_rows=lambda x: jnp.broadcast_to(x[:, None], mask.shape),
        ),
        baseline, scale, std_floor, ddof, None,
    )  # fmt: skip
    return jax.lax.stop_gradient(jnp.where(mask, advantages, 0.0)), stats


class _Reductions(NamedTuple):
    """How groups are laid out: reductions of rows to groups, and groups back to rows."""

    total: Callable
    highest: Callable
    lowest: Callable
    to_rows: Callable


def _by_segment(rewards, segment, num_groups, baseline, scale, std_floor, ddof, ema):
    """Advantages of rows sorted by segment; segment ``num_groups`` is masked, above it overflow."""
    valid = segment < num_groups
    reduce = {"num_segments": num_groups, "indices_are_sorted": True}
    row = jnp.minimum(segment, num_groups - 1)
    centred, stats = _relative(
        rewards, valid,
        _Reductions(
            total=lambda x: jax.ops.segment_sum(x, segment, **reduce),
            highest=lambda x: jax.ops.segment_max(x, segment, **reduce),
            lowest=lambda x: jax.ops.segment_min(x, segment, **reduce),
            to_rows=lambda x: x[row],
        ),
        baseline, scale, std_floor, ddof, ema,
    )  # fmt: skip
    return jnp.where(valid, centred, jnp.where(segment == num_groups, 0.0, jnp.nan)), stats


def _relative(rewards, valid, of: _Reductions, baseline, scale, std_floor, ddof, ema):
    """Advantages of rows (what stands in invalid ones means nothing) and statistics."""
    dtype = rewards.dtype
    count = of.total(valid.astype(dtype))
    present = count > 0
    mean = of.total(rewards) / jnp.maximum(count, 1)
    highest, lowest = of.highest(rewards), of.lowest(rewards)
    rounding = ROUNDING_ULPS * jnp.finfo(dtype).eps * jnp.maximum(jnp.abs(highest), jnp.abs(lowest))
    # A NaN among unmasked rewards must stay visible, whatever max and min make of it.
    equal = present & (highest - lowest <= rounding) & ~jnp.isnan(mean)

    # Two passes: E[x²] − E[x]² turns a spread of 0 into rounding noise that passes `std > 0`.
    deviation = jnp.where(valid, rewards - of.to_rows(mean), 0.0)
    variance = of.total(deviation**2) / jnp.maximum(count - ddof, 1)
    spread = jnp.where(equal, 0.0, jnp.sqrt(variance))

    if baseline == "leave_one_out":
        centred = deviation * of.to_rows(count / jnp.maximum(count - 1, 1))
    elif baseline == "ema":
        centred = rewards - jax.lax.stop_gradient(jnp.asarray(ema, dtype))
    elif baseline == "none":
        centred = rewards
    else:
        centred = deviation
    if baseline not in ("ema", "none"):
        centred = jnp.where(of.to_rows(equal), 0.0, centred)
    if scale == "std":
        centred = ops.safe_divide(centred, of.to_rows(jnp.maximum(spread, std_floor)))

    stats = AdvantageStats(
        rows=valid.sum(dtype=jnp.int32),
        groups=present.sum(dtype=jnp.int32),
        zero_spread_groups=equal.sum(dtype=jnp.int32),
        single_groups=(count == 1).sum(dtype=jnp.int32),
        zero_spread_rows=jnp.where(equal, count, 0).sum().astype(jnp.int32),
        reward_sum=jnp.where(valid, rewards, 0.0).sum(),
        std_sum=jnp.where(present, spread, 0.0).sum(),
        abs_advantage_sum=jnp.where(valid, jnp.abs(centred), 0.0).sum(),
    )
    return centred, stats


def abs_from_constant_groups(advantages, outcome, group_ids, mask, *, num_groups: int) -> Array:
    """Sums |A| over the groups in which ``outcome`` does not vary.

    Divided by ``AdvantageStats.abs_advantage_sum`` it is the share of the learning signal that
    comes from groups that are all right or all wrong, where only the shaped part of the reward
    differs. Without a ``std_floor`` that share can rule training.

    Args:
      advantages: [N] float. outcome: [N] bool or int, for instance correctness.
      group_ids, mask, num_groups: as in ``group_relative``.
    """
    outcome = ops.as_float(outcome)
    segment = dense_group_ids(group_ids, mask, num_groups)
    highest = jax.ops.segment_max(outcome, segment, num_groups)
    lowest = jax.ops.segment_min(outcome, segment, num_groups)
    constant = (highest == lowest)[jnp.minimum(segment, num_groups - 1)]
    return ops.masked_sum(jnp.abs(ops.as_float(advantages)), constant & (segment < num_groups))


def share_with_turns(advantages, episode_of_turn, mask) -> Array:
    """Gives every turn (or agent call) the advantage of its episode.

    Statistics are taken over episodes *first*; one row per turn in the group would count an
    episode once per turn and pull the baseline towards long ones.

    Args:
      advantages: [E] float, one per episode.
      episode_of_turn: [R] int, index in [0, E).
      mask: [R] bool.

    Returns:
      [R] float, 0 in masked rows.
    """
    advantages = ops.as_float(advantages)
    index = jnp.where(jnp.asarray(mask, bool), jnp.asarray(episode_of_turn), 0)
    return jnp.where(jnp.asarray(mask, bool), advantages[index], 0.0)


def update_ema(ema, rewards, mask, *, decay: float = 0.9, axis_name: str | None = None) -> Array:
    """Moves a running mean of the rewards: decay · ema + (1 − decay) · batch mean.

    Args:
      ema: scalar. rewards, mask: [N]. decay: in [0, 1].
      axis_name: mapped axis over which the batch mean is taken.

    Returns:
      The new scalar; ``ema`` unchanged when no row is valid.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must be in [0, 1], got {decay}")
    rewards = jax.lax.stop_gradient(ops.as_float(rewards))
    ema = jnp.asarray(ema, rewards.dtype)
    count = ops.global_sum(jnp.asarray(mask, bool).sum().astype(rewards.dtype), axis_name)
    total = ops.global_sum(ops.masked_sum(rewards, mask), axis_name)
    moved = decay * ema + (1 - decay) * ops.safe_divide(total, count)
    return jnp.where(count > 0, moved, ema)
