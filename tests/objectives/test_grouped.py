"""Groups that lie in rows: the same advantages as groups keyed by id."""

import functools
import itertools

import jax
import numpy as np
import pytest

from gradejax.objectives import advantages as lib

BY_ID = jax.jit(
    lib.group_relative, static_argnames=("num_groups", "baseline", "scale", "std_floor", "ddof")
)
IN_ROWS = jax.jit(lib.grouped, static_argnames=("baseline", "scale", "std_floor", "ddof"))


@functools.cache
def case():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(7, 5))
    rewards[1] = 0.1 + 0.2  # no spread
    rewards[2] = 0.3 + np.array([0, 1, 0, 1, 0]) * 1e-16  # rounding is no spread
    mask = rng.random((7, 5)) < 0.7
    mask[3] = False  # padding
    mask[4] = [False, True, False, False, False]
    return np.where(mask, rewards, np.nan), mask


@pytest.mark.parametrize(
    "baseline, scale, floor, ddof",
    list(itertools.product(("group_mean", "leave_one_out"), ("std", "none"), (0.0, 0.5), (0, 1))),
)
def test_rows_equal_ids(x64, baseline, scale, floor, ddof):
    rewards, mask = case()
    options = {"baseline": baseline, "scale": scale, "std_floor": floor, "ddof": ddof}
    got, stats = IN_ROWS(rewards, mask, **options)
    want, wanted = BY_ID(
        rewards.ravel(), np.repeat(np.arange(7) * 11 - 3, 5), mask.ravel(), num_groups=7, **options
    )
    np.testing.assert_allclose(got.ravel(), want, atol=1e-14)
    assert (np.asarray(got)[~mask] == 0).all() and (np.asarray(got)[1:3] == 0).all()
    for name in wanted.__dataclass_fields__:
        np.testing.assert_allclose(getattr(stats, name), getattr(wanted, name), rtol=1e-13)


def test_by_hand():
    """Rewards 1, 1, 3 (mean 5/3, std √(8/9)): −.7071, −.7071, 1.4142."""
    got, stats = IN_ROWS(np.array([[1.0, 1.0, 3.0, np.nan], [7.0, 7.0, 7.0, 7.0]], np.float32),
                         np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool))  # fmt: skip
    np.testing.assert_allclose(got[0], [-0.70711, -0.70711, 1.41421, 0], atol=1e-5)
    assert not np.asarray(got[1]).any()
    assert (int(stats.groups), int(stats.zero_spread_groups), int(stats.rows)) == (2, 1, 7)
    # The likely bug, one statistic for all rows, gives the first −1.37.
    real = np.array([1, 1, 3, 7, 7, 7, 7])
    fault = (1 - real.mean()) / real.std()
    assert fault == pytest.approx(-1.370, abs=1e-3) and abs(float(got[0, 0]) - fault) > 0.5


def test_nan_among_rewards_stays_visible():
    got, _ = IN_ROWS(np.array([[1.0, np.nan], [1.0, 2.0]]), np.ones((2, 2), bool))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_errors():
    with pytest.raises(ValueError, match="group_mean and leave_one_out; got 'ema'"):
        lib.grouped(np.zeros((2, 2)), np.ones((2, 2), bool), baseline="ema")
    with pytest.raises(ValueError, match=r"\[Q, G\]"):
        lib.grouped(np.zeros(4), np.ones(4, bool))
