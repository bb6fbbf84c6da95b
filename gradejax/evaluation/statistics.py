"""Intervals: the paired bootstrap over questions, and the spread over training seeds.

Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), ch. 13: percentile intervals.
Questions are the resampled unit, because they are what another benchmark run would draw anew;
systems on the same questions are resampled *together*, so the question difficulty they share
cancels in a difference.

Letters: B replicates, K series (systems or differences), Q questions, S seeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_CHUNK = 2_000_000  # resampled indices held at once: 16 MB


class Estimate(NamedTuple):
    """A mean and its interval; all NaN when nothing was counted."""

    value: float
    low: float
    high: float
    count: float  # sum of weights


class SeedSpread(NamedTuple):
    mean: float
    low: float  # smallest seed
    high: float  # largest seed
    count: int


def bootstrap_means(values, weights, *, replicates: int = 10_000, seed: int = 0) -> np.ndarray:
    """Weighted means of K series under B shared resamples of the questions.

    mean_bk = Σ_q c_bq w_kq x_kq / Σ_q c_bq w_kq, c_b the counts of Q draws with replacement.

    Args:
        values: [K, Q] float; what stands where the weight is 0 (NaN included) does not matter.
        weights: [K, Q] float ≥ 0; 0 = no outcome. Questions with weight 0 in *all* series (padding)
            are dropped before the draw, so they change neither the result nor the random numbers.

    Returns: [B, K] float64; NaN where a resample holds no question of positive weight. The same
    seed, replicates and number of questions give the same resamples.
    """
    values, weights = (
        np.atleast_2d(np.asarray(values, float)),
        np.atleast_2d(np.asarray(weights, float)),
    )
    if values.shape != weights.shape:
        raise ValueError(f"values and weights differ in shape: {values.shape} and {weights.shape}")
    if replicates < 1 or (weights < 0).any():
        raise ValueError(
            f"expected replicates ≥ 1 and weights ≥ 0, got {replicates} and {weights.min()}"
        )
    kept = (weights > 0).any(0)
    weights = weights[:, kept]
    totals = np.where(weights > 0, values[:, kept], 0.0) * weights
    n = int(kept.sum())
    if n == 0:
        return np.full((replicates, len(values)), np.nan)
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // n)
    means = np.empty((replicates, len(values)))
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(float)
        top, bottom = counts @ totals.T, counts @ weights.T
        means[start : start + rows] = np.where(
            bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.nan
        )
    return means


def percentile_interval(samples, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) over the leading axis of `samples` [B, ...]; NaN replicates are left out."""
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    samples = np.asarray(samples, float)
    flat = samples.reshape(len(samples), -1)
    bounds = np.full((2, flat.shape[1]), np.nan)
    tail = (1 - level) / 2
    for column, series in enumerate(flat.T):
        finite = series[np.isfinite(series)]
        if finite.size:
            bounds[:, column] = np.quantile(finite, [tail, 1 - tail])
    low, high = bounds.reshape((2,) + samples.shape[1:])
    return low, high


def mean_interval(
    values, weights=None, *, level: float = 0.95, replicates: int = 10_000, seed: int = 0
) -> Estimate:
    """Mean of `values` [Q] over the questions of positive weight, with its bootstrap interval."""
    values = np.asarray(values, float)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, float)
    samples = bootstrap_means(values[None], weights[None], replicates=replicates, seed=seed)[:, 0]
    low, high = percentile_interval(samples, level)
    return Estimate(weighted_mean(values, weights), float(low), float(high), float(weights.sum()))


def difference_interval(
    first,
    second,
    first_weights=None,
    second_weights=None,
    *,
    level: float = 0.95,
    replicates: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Paired mean of first − second, both [Q], over the questions that both have."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.shape != second.shape:
        raise ValueError(
            f"a paired difference needs the same questions: got {first.shape} and {second.shape}"
        )
    weights = np.ones_like(first)
    for given in (first_weights, second_weights):
        if given is not None:
            weights = weights * np.asarray(given, float)
    return mean_interval(first - second, weights, level=level, replicates=replicates, seed=seed)


def weighted_mean(values, weights) -> float:
    """Σ w x / Σ w over positive weights; NaN (nothing is known) when there are none."""
    values, weights = np.asarray(values, float), np.asarray(weights, float)
    # Dropped, not multiplied by 0: that would let NaN in and move the last digit.
    kept = weights > 0
    total = weights[kept].sum()
    return float((values[kept] * weights[kept]).sum() / total) if total > 0 else float("nan")


def seed_spread(values) -> SeedSpread:
    """Mean, smallest and largest of one number per training seed, `values` [S]; S ≥ 1.

    Min and max rather than a deviation: over three seeds a standard deviation looks better than it
    is.
    """
    values = np.asarray(values, float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"seed_spread: expected at least one value in one dimension, got shape {values.shape}"
        )
    return SeedSpread(
        float(values.mean()), float(values.min()), float(values.max()), int(values.size)
    )
