import numpy as np
import pytest

from gradejax.evaluation.statistics import (
    bootstrap_means,
    difference_interval,
    mean_interval,
    percentile_interval,
    seed_spread,
    weighted_mean,
)


def test_two_questions_by_hand():
    # Two draws from {1, 0}: mean 0, .5, 1 with probability 1/4, 1/2, 1/4.
    means = bootstrap_means([[1.0, 0.0]], [[1.0, 1.0]], replicates=20_000, seed=3)[:, 0]
    shares = [np.mean(means == value) for value in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.01)  # 3 standard errors


def test_interval_is_the_binomial_one():
    # 10 right of 20: replicate means are Binomial(20, .5)/20; P(X ≤ 5) = .0207, P(X ≤ 6) = .0577,
    # so the 2.5% point is 6/20, the 97.5% point 14/20. Drawing without replacement (a permutation)
    # gives [.5, .5]; the standard error without /n gives [-.48, 1.48].
    estimate = mean_interval([1.0] * 10 + [0.0] * 10, replicates=20_000)
    assert estimate == (0.5, 0.3, 0.7, 20.0)


def test_same_seed_same_interval_and_another_seed_another_draw():
    x = np.random.default_rng(0).random(37)
    assert mean_interval(x, seed=5) == mean_interval(x, seed=5)
    assert mean_interval(x, seed=5) != mean_interval(x, seed=6)


def test_zero_weight_rows_are_inert_wherever_they_stand():
    x = np.random.default_rng(1).random(23)
    holes = np.insert(x, [0, 5, 23], [np.nan, 9.0, np.inf])
    weights = np.insert(np.ones(23), [0, 5, 23], 0.0)
    assert mean_interval(holes, weights, replicates=500) == mean_interval(x, replicates=500)


def test_chunks_do_not_change_the_numbers(monkeypatch):
    x = np.random.default_rng(2).random((2, 11))
    whole = bootstrap_means(x, np.ones_like(x), replicates=100)
    monkeypatch.setattr("gradejax.evaluation.statistics._CHUNK", 50)  # 4 replicates at a time
    np.testing.assert_array_equal(bootstrap_means(x, np.ones_like(x), replicates=100), whole)


def test_weighted_means_match_a_loop():
    rng = np.random.default_rng(4)
    values, weights = rng.random((3, 9)), rng.integers(0, 3, (3, 9)) / 2
    got = bootstrap_means(values, weights, replicates=50, seed=7)
    kept = weights.sum(0) > 0
    drawn = np.random.default_rng(7).integers(0, kept.sum(), (50, kept.sum()))
    for b, rows in enumerate(drawn):
        for k in range(3):
            v, w = values[k, kept][rows], weights[k, kept][rows]
            expected = (v * w).sum() / w.sum() if w.sum() else np.nan
            np.testing.assert_allclose(got[b, k], expected, rtol=1e-12)


def test_difference_is_paired():
    rng = np.random.default_rng(5)
    a = (rng.random(300) < 0.6).astype(float)
    b = np.where(rng.random(300) < 0.1, 1 - a, a)  # agrees with a on 9 questions of 10
    both = bootstrap_means([a, b], np.ones((2, 300)), replicates=4000, seed=1)
    paired = both[:, 0] - both[:, 1]
    # Identity: the difference of the replicates is the replicate of the differences.
    alone = bootstrap_means([a - b], np.ones((1, 300)), replicates=4000, seed=1)[:, 0]
    np.testing.assert_allclose(paired, alone, atol=1e-12)
    estimate = difference_interval(a, b, replicates=4000, seed=1)
    np.testing.assert_allclose(
        [estimate.low, estimate.high], percentile_interval(paired), atol=1e-12
    )
    # Var(paired) = Var(a) + Var(b) − 2 Cov(a, b), over n; unpaired resampling drops the covariance.
    unpaired = both[:, 0] - bootstrap_means([b], np.ones((1, 300)), replicates=4000, seed=2)[:, 0]
    np.testing.assert_allclose(paired.var(), (a - b).var() / 300, rtol=0.1)
    np.testing.assert_allclose(unpaired.var(), (a.var() + b.var()) / 300, rtol=0.1)
    assert unpaired.std() > 2 * paired.std()


def test_difference_of_a_system_with_itself_is_exactly_nothing():
    x = np.random.default_rng(6).random(40)
    assert difference_interval(x, x)[:3] == (0.0, 0.0, 0.0)


def test_difference_counts_only_questions_that_both_have():
    # Question 1 is missing for the second system. Counted as wrong it would add +1: mean 2/3.
    estimate = difference_interval([1, 1, 0], [0, 0, 0], None, [1, 0, 1], replicates=100)
    assert estimate.value == 0.5 and estimate.count == 2


def test_coverage_of_the_interval():
    # 400 benchmarks of 80 questions from a system that is right with p = .7. The percentile
    # interval of a proportion at n = 80 covers a little under 95%; a 68% or a 99.9% interval would
    # fall outside.
    rng = np.random.default_rng(8)
    inside = 0
    for _ in range(400):
        x = (rng.random(80) < 0.7).astype(float)
        estimate = mean_interval(x, replicates=400, seed=int(rng.integers(1 << 30)))
        inside += estimate.low <= 0.7 <= estimate.high
    assert 0.91 <= inside / 400 <= 0.98


def test_nothing_known_is_nan_not_zero():
    estimate = mean_interval([1.0, 1.0], [0.0, 0.0], replicates=10)
    assert np.isnan(estimate[:3]).all() and estimate.count == 0
    assert np.isnan(weighted_mean([], []))


def test_seed_spread():
    assert seed_spread([0.5, 0.9, 0.7]) == pytest.approx((0.7, 0.5, 0.9, 3))
    with pytest.raises(ValueError, match="at least one"):
        seed_spread([])


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="same questions"):
        difference_interval([1, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="differ in shape"):
        bootstrap_means([[1, 0]], [[1, 1, 1]])
    with pytest.raises(ValueError, match="level"):
        percentile_interval([1.0], level=95)
