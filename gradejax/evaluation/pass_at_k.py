"""pass@k: the chance that at least one of k samples of a problem passes.

Chen et al., "Evaluating Large Language Models Trained on Code" (2021), equation 1: the unbiased
estimate 1 − C(n − c, k) / C(n, k) of each problem from its own n samples, c of which pass, and then
the mean over problems.
"""

from collections.abc import Sequence

import numpy as np


def pass_at_k(passed: Sequence[int], samples: Sequence[int], k: int) -> np.ndarray:
    """Estimate for each problem.

    Args:
      passed: [N] samples that pass, 0 ≤ passed ≤ samples. Counts, not shares.
      samples: [N] samples that were graded; a problem may have its own number.
      k: how many are drawn, at least 1.

    Returns: [N] float64 in [0, 1]; NaN for a problem with fewer than k samples, from which nothing
    can be said (never 1: one greedy sample gives no pass@10).

    Raises:
      ValueError: k below 1, shapes that differ, or counts that are not 0 ≤ passed ≤ samples.
    """
    c, n = np.asarray(passed), np.asarray(samples)
    if c.ndim != 1 or c.shape != n.shape:
        raise ValueError(f"expected two lists of one length, got shapes {c.shape} and {n.shape}")
    if isinstance(k, bool) or int(k) != k or k < 1:
        raise ValueError(f"expected a whole k of at least 1, got {k!r}")
    if (c != np.floor(c)).any() or (n != np.floor(n)).any() or (c < 0).any() or (c > n).any():
        raise ValueError("expected whole numbers with 0 ≤ passed ≤ samples for every problem")
    out = np.full(c.shape, np.nan)
    for i, (right, drawn) in enumerate(zip(c.astype(int), n.astype(int), strict=True)):
        if drawn >= k:
            # C(n-c, k) / C(n, k) as a product: no large factorials; a factor 0 where k > n - c
            left = np.arange(drawn - k + 1, drawn + 1)
            out[i] = 1.0 - np.prod(np.clip(left - right, 0, None) / left)
    return out


def mean_pass_at_k(passed: Sequence[int], samples: Sequence[int], k: int) -> tuple[float, int]:
    """(mean over the problems that have at least k samples, problems left out); NaN if none has."""
    each = pass_at_k(passed, samples, k)
    known = each[~np.isnan(each)]
    return (float(known.mean()) if known.size else float("nan")), int(each.size - known.size)
