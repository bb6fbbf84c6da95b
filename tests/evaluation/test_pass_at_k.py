"""pass@k against exact binomials, and what the known wrong forms give (fault E08)."""

import itertools
import math

import numpy as np
import pytest

from gradejax.evaluation.pass_at_k import mean_pass_at_k, pass_at_k


def test_it_is_the_share_of_draws_with_a_pass():
    """By enumeration of all draws of k out of n."""
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c > n or k > n:
            continue
        draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
        want = np.mean([any(draw) for draw in draws])
        np.testing.assert_allclose(pass_at_k([c], [n], k), [want], atol=1e-12)


def test_the_mean_is_over_problems_with_their_own_samples():
    """Two problems: 1 of 2 and 3 of 10. pass@1 is (.5 + .3) / 2 = .4; pooled samples give 4/12."""
    value, left_out = mean_pass_at_k([1, 3], [2, 10], 1)
    assert value == pytest.approx(0.4) and left_out == 0 and abs(value - 4 / 12) > 0.05


def test_fewer_samples_than_k_say_nothing():
    """From one greedy sample a pass@10 of 97% was once reported: n < k counted as 1."""
    assert np.isnan(pass_at_k([1, 0], [1, 1], 10)).all()
    value, left_out = mean_pass_at_k([1, 0, 5], [1, 1, 10], 10)
    assert value == 1.0 and left_out == 2
    assert math.isnan(mean_pass_at_k([1], [1], 2)[0])


def test_never_solved_is_zero_and_large_numbers_are_exact():
    assert pass_at_k([0, 0], [200, 10], 10).tolist() == [0.0, 0.0]
    want = 1 - math.comb(190, 100) / math.comb(200, 100)
    np.testing.assert_allclose(pass_at_k([10], [200], 100), [want], rtol=1e-12)
    one, ten = pass_at_k([3], [10], 1)[0], pass_at_k([3], [10], 10)[0]
    assert one == pytest.approx(0.3) and ten == 1.0  # not pass@1 for every k


@pytest.mark.parametrize("passed, samples, k", [
    ([2], [1], 1), ([0.5], [1], 1), ([-1], [1], 1), ([1], [1], 0), ([1], [1], 1.5),
    ([1, 2], [3], 1), ([1], [1], True),
])  # fmt: skip
def test_what_is_no_count_is_an_error(passed, samples, k):
    with pytest.raises(ValueError, match="expected"):
        pass_at_k(passed, samples, k)
