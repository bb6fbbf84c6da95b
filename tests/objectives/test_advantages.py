"""Group-relative advantages: faults A01, A02, A03, A09, identities, order and padding."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives import advantages as lib

# jit against no jit is compared for every objective in test_objective_conformance.py
compiled = jax.jit(
    lib.group_relative, static_argnames=("num_groups", "baseline", "scale", "std_floor", "ddof")
)


def group_relative(rewards, ids, mask=None, **options):
    rewards = jnp.asarray(rewards, jnp.float32)
    mask = jnp.ones(rewards.shape, bool) if mask is None else jnp.asarray(mask, bool)
    return compiled(rewards, jnp.asarray(ids, jnp.int32), mask, **options)


def reference(rewards, ids, mask, baseline="group_mean", scale="std", std_floor=0.0, ddof=0):
    """Plain numpy in double precision, one group after the other."""
    out = np.zeros(len(rewards))
    for i in set(ids[mask]):
        rows = np.flatnonzero((ids == i) & mask)
        r = np.asarray(rewards, np.float64)[rows]
        if r.max() == r.min():
            continue
        for j, row in enumerate(rows):
            others = np.delete(r, j)
            out[row] = r[j] - (others.mean() if baseline == "leave_one_out" else r.mean())
        if scale == "std":
            out[rows] /= max(r.std(ddof=ddof), std_floor)
    return out


@pytest.mark.parametrize(
    "rewards, ddof, want",
    [
        ([1, 1, 1, 1], 0, [0, 0, 0, 0]),
        ([0, 0, 0], 0, [0, 0, 0]),
        ([0.7], 0, [0]),
        ([0.7], 1, [0]),  # n − 1 = 0
        ([1, 0, 0, 0], 0, [1.73205081, -0.57735027, -0.57735027, -0.57735027]),
        ([1, 0, 0, 0], 1, [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_a01_zero_spread_and_the_two_deviations(rewards, ddof, want):
    got, stats = group_relative(rewards, np.zeros(len(rewards)), num_groups=1, ddof=ddof)
    np.testing.assert_allclose(got, want, atol=1e-6)
    equal = len(set(rewards)) == 1
    if equal:
        assert (np.asarray(got) == 0).all()
    assert stats.zero_spread_groups == equal
    assert stats.single_groups == (len(rewards) == 1)


def test_a01_one_sample_left_by_the_mask():
    got, stats = group_relative([0.7, 0.2, np.nan], [5, 5, 5], [1, 0, 0], num_groups=1)
    np.testing.assert_array_equal(got, [0, 0, 0])
    assert stats.rows == 1 and stats.single_groups == 1


@pytest.mark.parametrize("scale", ["std", "none"])
def test_a01_no_gradient_flows(scale):
    def total(rewards):
        return lib.group_relative(
            rewards, jnp.zeros(3, jnp.int32), jnp.ones(3, bool), num_groups=1, scale=scale
        )[0] @ jnp.array([1.0, 2.0, 3.0])

    for rewards in ([1.0, 1.0, 1.0], [1.0, 0.0, 0.5]):
        np.testing.assert_array_equal(jax.grad(total)(jnp.array(rewards)), np.zeros(3))
    # the fault: the derivative of the deviation at equal rewards is NaN
    assert np.isnan(jax.grad(lambda r: ((r - r.mean()) / (r.std() + 1e-4))[0])(jnp.ones(3))).all()


@pytest.mark.parametrize("value, size", [(0.35, 7), (0.7, 9), (0.3, 6), (1 / 3, 7)])
def test_a03_equal_rewards_are_exactly_zero_whatever_the_mean_rounds_to(value, size):
    rewards = np.full(size, value, np.float32)
    total = np.float32(0)
    for reward in rewards:
        total = np.float32(total + reward)
    residue = rewards[0] - np.float32(total / np.float32(size))
    assert residue != 0  # so that (r − mean) / std of the fault is ±1, a full advantage
    for baseline in ("group_mean", "leave_one_out", "batch"):
        for scale in lib.SCALES:
            got, stats = group_relative(
                rewards, np.zeros(size), num_groups=1, baseline=baseline, scale=scale
            )
            assert (np.asarray(got) == 0).all()
            assert stats.std_sum == 0


def test_a03_a_spread_at_rounding_level_counts_as_none():
    base = np.float32(0.35)
    rewards = np.array([base, np.nextafter(base, np.float32(1)), base], np.float32)
    got, stats = group_relative(rewards, [1, 1, 1], num_groups=1)
    np.testing.assert_array_equal(got, [0, 0, 0])
    assert stats.zero_spread_groups == 1
    # a small but real difference is kept: the default floor is off
    got, _ = group_relative([0.35, 0.3501, 0.35], [1, 1, 1], num_groups=1)
    np.testing.assert_allclose(got, [-0.70710678, 1.41421356, -0.70710678], atol=2e-3)


def test_floor_bounds_small_spreads_and_leaves_large_ones():
    # spread .05 under a floor of .5: ±.05/.5 = ±.1, for ±1 without
    rewards = [1.0, 1.1, 0.0, 2.0]
    got, _ = group_relative(rewards, [3, 3, 8, 8], num_groups=2, std_floor=0.5)
    np.testing.assert_allclose(got, [-0.1, 0.1, -1, 1], atol=1e-5)
    got, _ = group_relative(rewards, [3, 3, 8, 8], num_groups=2)
    np.testing.assert_allclose(got, [-1, 1, -1, 1], atol=1e-4)


def test_a02_statistics_over_episodes_not_turns():
    rewards, turns = np.array([1.0, 0.0, 0.0, 1.0]), np.array([4, 1, 1, 2])
    got, _ = group_relative(rewards, np.zeros(4), num_groups=1, scale="none")
    np.testing.assert_allclose(got, [0.5, -0.5, -0.5, 0.5], atol=1e-6)
    episode = np.repeat(np.arange(4), turns)
    shared = lib.share_with_turns(got, jnp.array(episode), jnp.ones(8, bool))
    np.testing.assert_allclose(shared, np.array([0.5, -0.5, -0.5, 0.5])[episode], atol=1e-6)
    fault, _ = group_relative(rewards[episode], np.zeros(8), num_groups=1, scale="none")
    first_turns = np.asarray(fault)[[0, 4, 5, 6]]
    np.testing.assert_allclose(first_turns, [0.25, -0.75, -0.75, 0.25], atol=1e-6)
    padded = lib.share_with_turns(got, jnp.array([3, -7]), jnp.array([True, False]))
    np.testing.assert_allclose(padded, [0.5, 0.0], atol=1e-6)


def test_a09_keyed_by_id_not_by_position():
    rewards, ids = [1, 0, 0, 1, 1, 1], [7, 2, 7, 2, 2, 7]
    got, _ = group_relative(rewards, ids, num_groups=2, scale="none")
    want = np.array([1, -2, -2, 1, 1, 1]) / 3
    np.testing.assert_allclose(got, want, atol=1e-6)
    by_position = np.array([2, -1, -1, 0, 0, 0]) / 3
    assert np.abs(np.asarray(got) - by_position).max() > 0.3
    by_episode, _ = group_relative(rewards, np.arange(6), num_groups=6, scale="none")
    np.testing.assert_array_equal(by_episode, np.zeros(6))


def test_a09_wrong_group_sizes_are_errors():
    ids, mask = np.array([7, 2, 7, 2, 2, 7, 9, 9]), np.array([1, 1, 1, 1, 1, 0, 0, 0], bool)
    lib.validate_groups(ids, mask, 3)  # 7 has a masked member, 9 is padding
    with pytest.raises(ValueError, match=r"must have 3 rows; 1 of 2 do not: id 2 has 2"):
        lib.validate_groups(np.delete(ids, 1), np.delete(mask, 1), 3)
    with pytest.raises(ValueError, match="integers"):
        lib.validate_groups(ids.astype(float), mask, 3)
    with pytest.raises(ValueError, match="rows"):
        lib.group_relative(
            jnp.zeros(8), jnp.array(ids), jnp.array(mask), num_groups=3, group_size=4
        )


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale, ddof, floor", [("std", 0, 0.0), ("std", 1, 0.3), ("none", 0, 0.0)])
@pytest.mark.parametrize("holes", ["none", "some", "end", "all"])
def test_against_numpy(baseline, scale, ddof, floor, holes):
    rng = np.random.default_rng(3)
    ids = rng.permutation(np.repeat([-2_000_000_000, 17, 2_000_000_000, 5, 0], 7)).astype(np.int32)
    rewards = rng.integers(0, 3, ids.shape).astype(np.float32) / 2
    rewards[ids == 5] = 0.35
    mask = {
        "none": np.ones(35, bool), "some": rng.random(35) < 0.6,
        "end": np.arange(35) < 20, "all": np.zeros(35, bool),
    }[holes]
    got, stats = group_relative(
        np.where(mask, rewards, np.nan), ids, mask, num_groups=5,
        baseline=baseline, scale=scale, ddof=ddof, std_floor=floor,
    )
    want = reference(rewards, ids, mask, baseline, scale, floor, ddof)
    np.testing.assert_allclose(got, want, atol=2e-6)
    real = [rewards[(ids == i) & mask] for i in np.unique(ids[mask])]
    assert stats.rows == mask.sum() and stats.groups == len(real)
    assert stats.zero_spread_groups == sum(r.max() == r.min() for r in real)
    assert stats.zero_spread_rows == sum(len(r) for r in real if r.max() == r.min())
    np.testing.assert_allclose(stats.reward_sum, rewards[mask].sum(), rtol=1e-6)
    np.testing.assert_allclose(stats.std_sum, sum(r.std(ddof=min(ddof, len(r) - 1)) for r in real),
                               atol=1e-5)
    np.testing.assert_allclose(stats.abs_advantage_sum, np.abs(want).sum(), rtol=1e-5)


def test_row_order_changes_no_bit():
    rng = np.random.default_rng(4)
    ids, rewards = np.repeat(np.arange(6), 8), rng.normal(size=48).astype(np.float32)
    mask = rng.random(48) < 0.8
    order = rng.permutation(48)
    got, _ = group_relative(rewards, ids, mask, num_groups=6)
    shuffled, _ = group_relative(rewards[order], ids[order], mask[order], num_groups=6)
    np.testing.assert_array_equal(np.asarray(got)[order], shuffled)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch", "none"])
def test_padding_rows_are_inert(baseline):
    rewards, ids = [1.0, 0.0, 0.5, 0.25], [4, 4, 9, 9]
    got, stats = group_relative(rewards, ids, num_groups=2, baseline=baseline)
    padded, padded_stats = group_relative(
        rewards + [np.nan, np.inf, 7.0], ids + [4, -1, 9], [1] * 4 + [0] * 3,
        num_groups=2, baseline=baseline,
    )
    np.testing.assert_array_equal(padded, np.concatenate([got, np.zeros(3)]))
    chex.assert_trees_all_equal(stats, padded_stats)


def test_leave_one_out_is_n_over_n_minus_1_of_the_mean_form():
    rng = np.random.default_rng(5)
    rewards, ids = rng.normal(size=11), np.array([0] * 3 + [1] * 8)
    mean, _ = group_relative(rewards, ids, num_groups=2, scale="none")
    loo, _ = group_relative(rewards, ids, num_groups=2, scale="none", baseline="leave_one_out")
    factor = np.array([3 / 2] * 3 + [8 / 7] * 8)
    np.testing.assert_allclose(loo, factor * np.asarray(mean), rtol=1e-5)


def test_batch_ema_and_no_baseline():
    rewards, ids = np.array([1.0, 0.0, 2.0, 1.0]), [1, 1, 2, 2]
    batch, _ = group_relative(rewards, ids, num_groups=2, baseline="batch", scale="none")
    np.testing.assert_allclose(batch, [0, -1, 1, 0], atol=1e-6)
    grouped, _ = group_relative(rewards, ids, num_groups=2, scale="none")
    np.testing.assert_allclose(grouped, [0.5, -0.5, 0.5, -0.5], atol=1e-6)
    ema, _ = group_relative(rewards, ids, num_groups=2, baseline="ema", scale="none",
                            ema=jnp.array(0.25))
    np.testing.assert_allclose(ema, [0.75, -0.25, 1.75, 0.75], atol=1e-6)
    none, _ = group_relative(rewards, ids, num_groups=2, baseline="none", scale="none")
    np.testing.assert_allclose(none, rewards, atol=1e-6)
    # Equal rewards are *not* worth 0 when the baseline is not their mean, unless they are scaled
    # by a spread of 0.
    equal, _ = group_relative([2, 2], [1, 1], num_groups=1, baseline="none", scale="none")
    np.testing.assert_array_equal(equal, [2, 2])
    scaled, _ = group_relative([2, 2], [1, 1], num_groups=1, baseline="none", scale="std")
    np.testing.assert_array_equal(scaled, [0, 0])


def test_nan_reward_of_an_unmasked_row_and_groups_beyond_the_bound_stay_visible():
    got, _ = group_relative([1, 1, np.nan, 1, 0, 1], [7, 7, 7, 2, 2, 9], num_groups=2)
    # id 9 is the third group of two: NaN, and no part of the others
    np.testing.assert_array_equal(np.isnan(got), [True, True, True, False, False, True])
    np.testing.assert_allclose(got[3:5], [1, -1], atol=1e-6)


def test_double_precision_is_kept(x64):
    got, stats = lib.group_relative(
        jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.zeros(4, jnp.int32), jnp.ones(4, bool), num_groups=1
    )
    assert got.dtype == stats.std_sum.dtype == jnp.float64
    np.testing.assert_allclose(got, [3**0.5] + [-(3**-0.5)] * 3, atol=1e-14)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch"])
def test_groups_that_cross_devices_equal_one_device(baseline):
    rng = np.random.default_rng(6)
    ids = jnp.array(rng.permutation(np.repeat([3, 11, 20], 4)), jnp.int32)
    rewards, mask = jnp.array(rng.normal(size=12), jnp.float32), jnp.array(rng.random(12) < 0.8)
    options = {"num_groups": 3, "baseline": baseline}
    want, want_stats = lib.group_relative(rewards, ids, mask, **options)
    cut = functools.partial(lib.group_relative, axis_name="devices", **options)
    got, stats = jax.pmap(cut, axis_name="devices")(
        *(x.reshape(4, 3) for x in (rewards, ids, mask))
    )
    np.testing.assert_allclose(got.reshape(-1), want, atol=1e-6)
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[0], stats), want_stats, rtol=1e-6)
    alone, _ = jax.pmap(functools.partial(lib.group_relative, **options))(
        *(x.reshape(4, 3) for x in (rewards, ids, mask))
    )
    assert np.abs(alone.reshape(-1) - want).max() > 0.1  # per-device statistics: refused


def test_share_of_the_signal_from_groups_with_one_outcome():
    # group 0 all right (differs by cost only), group 1 mixed, one padding row
    advantages = jnp.array([1.0, -1.0, 0.5, -0.25, 9.0])
    correct = jnp.array([True, True, True, False, True])
    ids, mask = jnp.array([0, 0, 1, 1, 0]), jnp.array([1, 1, 1, 1, 0], bool)
    got = lib.abs_from_constant_groups(advantages, correct, ids, mask, num_groups=2)
    np.testing.assert_allclose(got, 2.0)


def test_update_ema():
    rewards, mask = jnp.array([1.0, 3.0, np.nan]), jnp.array([1, 1, 0], bool)
    np.testing.assert_allclose(lib.update_ema(10.0, rewards, mask), 0.9 * 10 + 0.1 * 2, rtol=1e-6)
    assert lib.update_ema(10.0, rewards, jnp.zeros(3, bool)) == 10  # not pulled towards 0
    local = functools.partial(lib.update_ema, decay=0.5, axis_name="d")
    moved = jax.pmap(local, axis_name="d", in_axes=(None, 0, 0))(
        0.0, jnp.array([[1.0, 1.0], [4.0, 0.0]]), jnp.array([[1, 1], [1, 0]], bool)
    )
    np.testing.assert_allclose(moved, [1.0, 1.0])  # (1 + 1 + 4)/3 · ½; mean of means: 1.25
    with pytest.raises(ValueError, match="decay"):
        lib.update_ema(0.0, rewards, mask, decay=1.5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"baseline": "median"}, "choose from"), ({"scale": "var"}, "choose from"),
        ({"ddof": 2}, "ddof"), ({"baseline": "ema"}, "ema"), ({"ema": 0.0}, "ema"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lib.group_relative(jnp.zeros(2), jnp.zeros(2, jnp.int32), jnp.ones(2, bool), num_groups=1,
                           **options)


def test_mismatched_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[N\]"):
        lib.group_relative(jnp.zeros((2, 1)), jnp.zeros(2, jnp.int32), jnp.ones(2, bool),
                           num_groups=1)
