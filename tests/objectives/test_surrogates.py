"""Clipped surrogates and REINFORCE: faults A06, A08, the component sum, identities, masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives import surrogates as lib

RATIOS = np.array([0.5, 0.9, 1.1, 1.5])


# jit against no jit is compared for every objective in test_objective_conformance.py
compiled = jax.jit(lib.clipped_surrogate, static_argnames=("clip_low", "clip_high"))


def surrogate(log_ratio, advantages, took_part=None, *, denominator=1, clip=0.2):
    log_ratio = jnp.asarray(log_ratio, jnp.float32)
    took_part = jnp.ones(log_ratio.shape, bool) if took_part is None else jnp.asarray(took_part)
    return compiled(log_ratio, jnp.asarray(advantages, jnp.float32), took_part, clip_low=clip,
                    clip_high=clip, denominator=jnp.asarray(denominator))


def reference(log_ratio, advantages, took_part, low, high):
    """min(ϱA, clip(ϱ)A) as printed, in double precision."""
    ratio = np.exp(np.asarray(log_ratio, np.float64))
    a = np.asarray(advantages)[:, None]
    terms = np.minimum(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
    return -np.where(took_part, terms, 0).sum()


@pytest.mark.parametrize(
    "advantage, objective, gradient, clipped",
    [
        (1.0, [0.5, 0.9, 1.1, 1.2], [0.5, 0.9, 1.1, 0.0], [0, 0, 0, 1]),
        (-1.0, [-0.8, -0.9, -1.1, -1.5], [0.0, -0.9, -1.1, -1.5], [1, 0, 0, 0]),
    ],
)
def test_a06_table_of_the_minimum(advantage, objective, gradient, clipped):
    for i, ratio in enumerate(RATIOS):
        (loss, stats), slope = jax.value_and_grad(
            lambda x: surrogate(x, [advantage]), has_aux=True
        )(jnp.log(jnp.array([[ratio]])))
        np.testing.assert_allclose(-loss, objective[i], atol=1e-5)
        np.testing.assert_allclose(-slope, [[gradient[i]]], atol=1e-5)
        assert stats.clipped[0] == clipped[i]


def test_a06_clip_fraction_counts_by_the_sign():
    log_ratio = np.log(RATIOS)[None].repeat(2, 0)
    _, stats = surrogate(log_ratio, [1.0, -1.0])
    assert stats.clipped.sum() / stats.count.sum() == 0.25
    outside = np.abs(RATIOS - 1) > 0.2  # without the sign twice as many
    assert outside.mean() == 0.5
    np.testing.assert_allclose(stats.ratio_sum, 2 * RATIOS, rtol=1e-6)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("clip", [0.2, float("inf")])
def test_a06_overflow_is_bounded(advantage, log_ratio, clip):
    (loss, stats), slope = jax.value_and_grad(
        lambda x: surrogate(x, [advantage], clip=clip), has_aux=True
    )(jnp.array([[log_ratio]]))
    assert np.isfinite(loss) and np.isfinite(slope**2).all()
    assert stats.max_abs_log_ratio == 200
    if log_ratio > 0 and clip == 0.2 and advantage > 0:
        # the fault: unbounded exp gives 0 · inf
        unbounded = jax.grad(
            lambda x: jnp.minimum(jnp.exp(x) * 1.0, jnp.clip(jnp.exp(x), 0.8, 1.2) * 1.0)
        )(log_ratio)
        assert np.isnan(unbounded)


@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.2, 0.28), (0.0, 0.0), (0.5, 3.0)])
def test_against_numpy(low, high):
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(size=(13, 4)) * 0.4
    advantages, took_part = rng.normal(size=13), rng.random((13, 4)) < 0.7
    loss, stats = lib.clipped_surrogate(
        jnp.array(log_ratio, jnp.float32), jnp.array(advantages, jnp.float32), jnp.array(took_part),
        clip_low=low, clip_high=high, denominator=jnp.array(11),
    )
    want = reference(log_ratio, advantages, took_part, low, high) / 11
    np.testing.assert_allclose(loss, want, rtol=2e-5)
    np.testing.assert_array_equal(stats.count, took_part.sum(0))


def test_sum_over_components_is_not_divided_by_their_number():
    # Three rollouts of depth 0, 1, 2: one, two, four components took part.
    took_part = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], bool)
    slope = jax.grad(lambda x: surrogate(x, [1.0, 1.0, 1.0], took_part, denominator=3)[0])(
        jnp.zeros((3, 4))
    )
    np.testing.assert_allclose(slope, took_part / -3, atol=1e-7)
    depth_of_fault = -1 / (3 * took_part.sum(1))  # ⅓, ⅙, 1/12: prefers depth 0
    assert not np.allclose(slope[:, 0], depth_of_fault)


def test_component_ratio_is_the_product_of_its_decisions():
    log_prob = jnp.array([[0.1, 0.2, -0.3, 0.5], [0.4, jnp.nan, 0.1, -jnp.inf]])
    old = jnp.array([[0.0, 0.1, 0.1, 0.1], [0.0, 0.0, 0.3, -jnp.inf]])
    mask = jnp.array([[1, 1, 1, 1], [1, 0, 1, 0]], bool)
    component_of = (0, 1, 1, 2)
    got, took_part = lib.log_ratios(log_prob, old, mask, component_of, num_components=4)
    np.testing.assert_allclose(got, [[0.1, -0.3, 0.4, 0], [0.4, -0.2, 0, 0]], atol=1e-6)
    np.testing.assert_array_equal(took_part, [[1, 1, 1, 0], [1, 1, 0, 0]])
    each, part = lib.log_ratios(log_prob, old, mask, component_of, num_components=4,
                                ratio="decision")
    np.testing.assert_allclose(each, [[0.1, 0.1, -0.4, 0.4], [0.4, 0, -0.2, 0]], atol=1e-6)
    np.testing.assert_array_equal(part, mask)
    # gradient: 1 to every decision that was made, 0 to forced ones and to the old policy
    slopes = jax.grad(
        lambda new, old: lib.log_ratios(new, old, mask, component_of, num_components=4)[0].sum(),
        argnums=(0, 1),
    )(log_prob, old)
    np.testing.assert_array_equal(slopes[0], mask.astype(np.float32))
    np.testing.assert_array_equal(slopes[1], np.zeros((2, 4)))


def test_component_and_decision_forms_differ_once_clipped():
    # two decisions of one component at ratio 1.15: together 1.3225, clipped; alone neither is
    new, old = jnp.full((1, 2), np.log(1.15)), jnp.zeros((1, 2))
    mask = jnp.ones((1, 2), bool)
    for ratio, clipped, objective in (("component", 1, 1.2), ("decision", 0, 2.3)):
        log_ratio, took_part = lib.log_ratios(new, old, mask, (0, 0), num_components=1, ratio=ratio)
        loss, stats = surrogate(log_ratio, [1.0], took_part)
        assert stats.clipped.sum() == clipped
        np.testing.assert_allclose(-loss, objective, rtol=1e-5)


def test_at_ratio_one_the_gradient_is_reinforce():
    # T6: one update per sample: value 1, but the gradient must flow through log π − stop(log π)
    rng = np.random.default_rng(1)
    log_prob = jnp.array(rng.normal(size=(6, 3)), jnp.float32)
    advantages, took_part = rng.normal(size=6), jnp.array(rng.random((6, 3)) < 0.7)
    weights = jnp.asarray(advantages, jnp.float32)

    def clipped(x):
        ratio, part = lib.log_ratios(x, x, took_part, (0, 1, 2), num_components=3)
        return surrogate(ratio, advantages, part, denominator=6)[0]

    def reinforce(x):
        return lib.reinforce_loss(x, weights, took_part, denominator=jnp.array(6))

    got, want = jax.grad(clipped)(log_prob), jax.grad(reinforce)(log_prob)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(want, -np.where(took_part, advantages[:, None], 0) / 6, atol=1e-6)


def test_without_clip_it_is_reinforce_with_a_ratio():
    rng = np.random.default_rng(2)
    log_ratio, advantages = rng.normal(size=(7, 2)), rng.normal(size=7)
    loss, stats = surrogate(log_ratio, advantages, denominator=7, clip=float("inf"))
    want = -(np.exp(log_ratio) * advantages[:, None]).sum() / 7
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    assert stats.clipped.sum() == 0


def test_masked_entries_and_padding_rows_are_inert():
    log_ratio = jnp.array([[0.1, jnp.nan], [-0.1, 0.3], [jnp.inf, -jnp.inf]])
    took_part = jnp.array([[1, 0], [1, 1], [0, 0]], bool)

    def value(log_ratio, advantages, rows):
        return surrogate(log_ratio[:rows], advantages[:rows], took_part[:rows], denominator=2)

    (loss, stats), slope = jax.value_and_grad(value, has_aux=True)(
        log_ratio, jnp.array([1.0, -2.0, jnp.nan]), 3
    )
    (short, short_stats), _ = jax.value_and_grad(value, has_aux=True)(
        log_ratio, jnp.array([1.0, -2.0, jnp.nan]), 2
    )
    want = -(np.exp(0.1) - 2 * np.exp(-0.1) - 2 * np.exp(0.3)) / 2
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(loss, short, rtol=1e-6)
    np.testing.assert_array_equal(stats.count, short_stats.count)
    np.testing.assert_array_equal(np.asarray(slope)[~np.asarray(took_part)], np.zeros(3))
    assert np.isfinite(slope).all()


def test_no_gradient_to_advantages_and_none_from_zero_advantages():
    ratio = jnp.array([[0.3], [-0.2]])
    slope = jax.grad(lambda a: lib.clipped_surrogate(
        ratio, a, jnp.ones((2, 1), bool), clip_low=0.2, clip_high=0.2, denominator=2
    )[0])(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(slope, [0, 0])
    none = jax.grad(lambda x: surrogate(x, [0.0, 0.0])[0])(ratio)
    np.testing.assert_array_equal(none, np.zeros((2, 1)))


def test_losses_of_devices_add_up():
    rng = np.random.default_rng(3)
    log_ratio = jnp.array(rng.normal(size=(8, 3)), jnp.float32)
    advantages = jnp.array(rng.normal(size=8), jnp.float32)
    took_part = jnp.array(rng.random((8, 3)) < 0.6).at[5].set(False)  # uneven: one padding row

    def loss(log_ratio, advantages, took_part, count):
        return lib.clipped_surrogate(log_ratio, advantages, took_part, clip_low=0.2,
                                     clip_high=0.2, denominator=count)[0]

    def local(*args):
        count = jax.lax.psum(args[-1].any(1).sum(), "d")
        value, slope = jax.value_and_grad(loss)(*args, count)
        return jax.lax.psum(value, "d"), slope

    want, want_slope = jax.value_and_grad(loss)(log_ratio, advantages, took_part, 7)
    got, slope = jax.pmap(local, axis_name="d")(
        log_ratio.reshape(4, 2, 3), advantages.reshape(4, 2), took_part.reshape(4, 2, 3)
    )
    np.testing.assert_allclose(got, np.full(4, want), rtol=1e-5)
    np.testing.assert_allclose(slope.reshape(8, 3), want_slope, atol=1e-6)


def sequence_loss(log_ratio, advantages, mask, **options):
    return lib.token_surrogate(
        log_ratio, advantages, mask, clip_low=0.3, clip_high=0.3, aggregation="sequence_mean",
        denominator=jnp.array(2), **options,
    )


def test_a08_sequence_ratio_counts_an_answer_once():
    # ϱ_1 = exp((.1 + .3)/2) = 1.221403, ϱ_2 = exp((−.2 + .4 + .1)/3) = 1.105171; A = 1, −1
    log_ratio = jnp.array([[0.1, 0.3, 5.0], [-0.2, 0.4, 0.1]])
    mask, advantages = jnp.array([[1, 1, 0], [1, 1, 1]], bool), jnp.array([1.0, -1.0])
    (loss, stats), slope = jax.value_and_grad(sequence_loss, has_aux=True)(
        log_ratio, advantages, mask, ratio="sequence"
    )
    np.testing.assert_allclose(loss, -(1.221403 - 1.105171) / 2, atol=1e-6)
    counted_per_token = -(2 * 1.221403 - 3 * 1.105171) / 2
    assert abs(loss - counted_per_token) > 0.4
    with_padding = -(np.exp(5.4 / 3) - 1.105171) / 2
    assert abs(loss - with_padding) > 1
    assert stats.count[0] == 2
    np.testing.assert_allclose(
        slope, [[-1.221403 / 4, -1.221403 / 4, 0], [1.105171 / 6] * 3], atol=1e-6
    )
    for padding in (-50.0, np.nan, np.inf):
        (other, _), other_slope = jax.value_and_grad(sequence_loss, has_aux=True)(
            log_ratio.at[0, 2].set(padding), advantages, mask, ratio="sequence"
        )
        assert other == loss
        np.testing.assert_array_equal(other_slope, slope)


def test_a08_length_does_not_change_the_loss():
    for length in (1, 4, 9):
        log_ratio, mask = jnp.full((2, length), 0.1), jnp.ones((2, length), bool)
        loss, _ = sequence_loss(log_ratio, jnp.ones(2), mask, ratio="sequence")
        np.testing.assert_allclose(loss, -np.exp(0.1), rtol=1e-6)


def test_sequence_ratio_is_clipped_per_answer():
    # tokens at ±1 log-ratio are far outside the band one by one, the answer at ratio 1 is not
    log_ratio, mask = jnp.array([[1.0, -1.0]]), jnp.ones((1, 2), bool)
    _, whole = sequence_loss(log_ratio, jnp.ones(1), mask, ratio="sequence")
    _, tokens = sequence_loss(log_ratio, jnp.ones(1), mask, ratio="token")
    assert whole.clipped[0] == 0 and tokens.clipped[0] == 1


def test_one_token_per_answer_makes_both_ratios_equal():
    rng = np.random.default_rng(4)
    log_ratio, mask = jnp.array(rng.normal(size=(2, 1)), jnp.float32), jnp.ones((2, 1), bool)
    a, _ = sequence_loss(log_ratio, jnp.array([1.0, -2.0]), mask, ratio="sequence")
    b, _ = sequence_loss(log_ratio, jnp.array([1.0, -2.0]), mask, ratio="token")
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_token_advantages_may_differ_by_token():
    mask = jnp.array([[1, 1], [1, 0]], bool)
    per_token = jnp.array([[1.0, 2.0], [3.0, jnp.nan]])
    loss, stats = lib.token_surrogate(
        jnp.zeros((2, 2)), per_token, mask, clip_low=0.2, clip_high=0.2, aggregation="token_mean",
        denominator=3,
    )
    np.testing.assert_allclose(loss, -2.0)
    assert stats.count.shape == (1,) and stats.count[0] == 3


def test_double_precision_is_kept(x64):
    loss, stats = lib.clipped_surrogate(
        jnp.array([[0.1]]), jnp.array([1.0]), jnp.ones((1, 1), bool), clip_low=0.2, clip_high=0.2,
        denominator=jnp.array(1),
    )
    assert loss.dtype == stats.ratio_sum.dtype == jnp.float64
    np.testing.assert_allclose(loss, -np.exp(0.1), atol=1e-15)


def test_bad_options_are_refused():
    one, mask = jnp.zeros((2, 2)), jnp.ones((2, 2), bool)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    with pytest.raises(ValueError, match="clip_low"):
        lib.clipped_surrogate(one, jnp.zeros(2), mask, clip_low=-0.1, clip_high=0.2, denominator=1)
    with pytest.raises(ValueError, match="mask"):
        lib.clipped_surrogate(one, jnp.zeros(2), mask[:, :1], denominator=1, **clip)
    with pytest.raises(ValueError, match="advantages"):
        lib.clipped_surrogate(one, jnp.zeros(3), mask, denominator=1, **clip)
    with pytest.raises(ValueError, match="sequence_mean"):
        lib.token_surrogate(one, jnp.zeros(2), mask, aggregation="token_mean", ratio="sequence",
                            denominator=1, **clip)
    with pytest.raises(ValueError, match=r"\[N\]"):
        lib.token_surrogate(one, one, mask, aggregation="sequence_mean", ratio="sequence",
                            denominator=1, **clip)
    with pytest.raises(ValueError, match="choose from"):
        lib.token_surrogate(one, one, mask, aggregation="token_mean", ratio="word",
                            denominator=1, **clip)
    with pytest.raises(ValueError, match="choose from"):
        lib.log_ratios(one, one, mask, (0, 0), num_components=1, ratio="rollout")
    with pytest.raises(ValueError, match="component_of"):
        lib.log_ratios(one, one, mask, (0,), num_components=1)


def test_against_rlax():
    rlax = pytest.importorskip("rlax")
    rng = np.random.default_rng(5)
    log_ratio = jnp.array(rng.normal(size=9) * 0.5, jnp.float32)
    advantages = jnp.array(rng.normal(size=9), jnp.float32)

    def ours(x):
        return lib.clipped_surrogate(x[:, None], advantages, jnp.ones((9, 1), bool), clip_low=0.2,
                                     clip_high=0.2, denominator=9)[0]

    def theirs(x):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(x), advantages, 0.2)

    for got, want in zip(jax.value_and_grad(ours)(log_ratio), jax.value_and_grad(theirs)(log_ratio),
                         strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
