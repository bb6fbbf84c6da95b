"""The numerical rules: masks that select, logs that stay differentiable, exact precision."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax import ops


def test_as_float_raises_half_precision_and_keeps_double(x64):
    assert ops.as_float(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32
    assert ops.as_float(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    assert ops.as_float(jnp.ones(2, jnp.float64)).dtype == jnp.float64
    assert ops.as_float(jnp.ones(2, bool)).dtype == jnp.float64


def test_masked_mean_by_hand():
    x = jnp.array([[1.0, 2.0, 6.0], [4.0, 5.0, 9.0]])
    mask = jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    # (1 + 2 + 4) / 3; dividing by the number of all entries would give 7 / 6
    np.testing.assert_allclose(ops.masked_mean(x, mask), 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(ops.masked_mean(x, mask, axis=1), [1.5, 4.0], rtol=1e-6)
    np.testing.assert_allclose(ops.masked_sum(x, mask, axis=0), [5.0, 2.0, 0.0], rtol=1e-6)


def test_masked_mean_of_nothing_is_zero_with_zero_gradient():
    value, gradient = jax.value_and_grad(lambda x: ops.masked_mean(x, jnp.zeros(3, bool)))(
        jnp.array([1.0, jnp.nan, jnp.inf])
    )
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_masked_entries_are_inert_even_when_nan():
    x = jnp.array([1.0, jnp.nan, 3.0])
    mask = jnp.array([True, False, True])
    value, gradient = jax.value_and_grad(lambda x: ops.masked_mean(x, mask))(x)
    assert value == 2
    np.testing.assert_array_equal(gradient, [0.5, 0.0, 0.5])


def test_mask_of_lower_rank_covers_leading_axes():
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(ops.masked_sum(x, jnp.array([False, True])), 12.0)
    with pytest.raises(ValueError, match="more axes"):
        ops.masked_sum(x[0], jnp.ones((2, 3), bool))


def test_safe_log_keeps_entropy_differentiable_at_zero():
    def entropy(p):
        return -(p * ops.safe_log(p)).sum()

    value, gradient = jax.value_and_grad(entropy)(jnp.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert not np.isfinite(jax.grad(lambda p: (p * jnp.log(p)).sum())(jnp.zeros(1))).all()
    assert ops.safe_log(0.0, floor=-5.0) == -5
    assert np.isnan(ops.safe_log(jnp.nan))


def test_safe_divide_by_zero():
    value, gradient = jax.value_and_grad(ops.safe_divide, argnums=(0, 1))(1.0, 0.0)
    assert value == 0 and gradient == (0, 0)
    assert ops.safe_divide(1.0, 4.0) == 0.25


@pytest.mark.parametrize("x", [-1e-20, -1e-8, -0.1, -0.6931, -0.6932, -1.0, -20.0, -80.0])
def test_log1mexp_against_double_precision(x):
    want = np.log(-np.expm1(np.float64(x))) if x > -1 else np.log1p(-np.exp(np.float64(x)))
    value, gradient = jax.value_and_grad(ops.log1mexp)(jnp.float32(x))
    np.testing.assert_allclose(value, want, rtol=2e-6)
    np.testing.assert_allclose(gradient, 1 / np.expm1(-np.float64(x)) * -1, rtol=2e-6)


def test_log1mexp_at_zero():
    value, gradient = jax.value_and_grad(ops.log1mexp)(0.0)
    assert value == -np.inf and gradient == 0
    # the plain form has lost everything long before
    assert jnp.log(1 - jnp.exp(jnp.float32(-1e-8))) == -np.inf


def test_log_normalizer_and_masked_log_softmax():
    logits = jnp.array([[1.0, 2.0, jnp.nan], [0.5, -jnp.inf, 0.5], [7.0, 8.0, 9.0]])
    mask = jnp.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    np.testing.assert_allclose(
        ops.log_normalizer(logits, mask),
        [np.log(np.e + np.e**2), 0.5 + np.log(2), -np.inf], rtol=1e-6,
    )
    log_p = ops.masked_log_softmax(logits, mask)
    np.testing.assert_allclose(
        np.exp(log_p),
        [[1 / (1 + np.e), np.e / (1 + np.e), 0], [0.5, 0, 0.5], [0, 0, 0]], rtol=1e-6,
    )

    def first(logits):
        return jnp.where(mask, ops.masked_log_softmax(logits, mask), 0.0)[:, 0].sum()

    gradient = jax.grad(first)(logits)
    # 1 - p at the drawn entry, -p at the other allowed ones, exactly 0 elsewhere
    np.testing.assert_allclose(
        gradient,
        [[np.e / (1 + np.e), -np.e / (1 + np.e), 0], [0.5, 0, -0.5], [0, 0, 0]], rtol=1e-6,
    )


def test_nonempty_normaliser_by_enumeration():
    logits = np.array([0.3, -1.2, 2.0, 5.0])
    mask = np.array([True, True, True, False])
    p = 1 / (1 + np.exp(-logits))
    total = sum(
        np.prod([p[i] if b else 1 - p[i] for i, b in enumerate(bits)])
        for bits in itertools.product([0, 1], repeat=3) if any(bits)
    )
    np.testing.assert_allclose(
        ops.log_normalizer_nonempty(jnp.array(logits), jnp.array(mask)), np.log(total), rtol=2e-6
    )


@pytest.mark.parametrize("logit", [-5.0, -16.0, -20.0, -40.0, -300.0])
def test_nonempty_normaliser_far_in_the_tail(logit):
    logits = jnp.array([logit, logit + 1, 50.0])
    mask = jnp.array([True, True, False])
    value, gradient = jax.value_and_grad(lambda s: ops.log_normalizer_nonempty(s, mask))(logits)
    s = np.array([logit, logit + 1])
    p = 1 / (1 + np.exp(-s))
    # log(p1 + p2 - p1 p2) and its derivative p_i (1 - p_j)(1 - p_i) / Z, written with the common
    # factor e^s taken out so that double precision holds at -300
    scaled = p * np.exp(-logit)
    z = scaled.sum() - scaled[0] * p[1]
    np.testing.assert_allclose(value, np.log(z) + logit, rtol=1e-5)
    np.testing.assert_allclose(gradient[:2], scaled * (1 - p) * (1 - p[::-1]) / z, rtol=1e-4)
    assert gradient[2] == 0
    if logit <= -20:  # what is refused: the plain form
        plain = jax.grad(lambda s: jnp.log(1 - jnp.prod(1 - jax.nn.sigmoid(s))))(logits[:2])
        assert not np.isfinite(plain).all()


def test_nonempty_normaliser_of_nothing():
    value, gradient = jax.value_and_grad(
        lambda s: ops.log_normalizer_nonempty(s, jnp.zeros(3, bool))
    )(jnp.array([1.0, -jnp.inf, jnp.nan]))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_token_logprobs_against_numpy_and_in_double(x64):
    rng = np.random.default_rng(0)
    logits, tokens = rng.normal(size=(2, 3, 5)) * 4, rng.integers(0, 5, (2, 3))
    want = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    want = np.take_along_axis(want, tokens[..., None], -1)[..., 0]
    got = ops.token_logprobs(jnp.array(logits), jnp.array(tokens))
    assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, want, atol=1e-13)
    single = ops.token_logprobs(jnp.array(logits, jnp.float32), jnp.array(tokens))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, want, atol=1e-5)


def test_token_logprobs_raises_bfloat16_before_the_softmax():
    logits = (jnp.arange(64.0) / 8).astype(jnp.bfloat16)[None]
    token = jnp.array([3])
    got = ops.token_logprobs(logits, token)
    wide = np.asarray(logits, np.float64)
    want = wide[0, 3] - np.log(np.exp(wide).sum())
    np.testing.assert_allclose(got, [want], rtol=1e-6)
    assert abs(jax.nn.log_softmax(logits)[0, 3].astype(jnp.float32) - want) > 1e-3


def test_sampler_and_trainer_agree_on_temperature_and_kept_set():
    # A05. Temperature 1/2 of p = (.5, .3, .2) is (.25, .09, .04) / .38.
    logits, token = jnp.log(jnp.array([[0.5, 0.3, 0.2]])), jnp.array([2])
    sampled = np.log(0.04 / 0.38)
    ratio = np.exp(ops.token_logprobs(logits, token, temperature=0.5) - sampled)
    np.testing.assert_allclose(ratio, [1.0], rtol=1e-5)
    fault = np.exp(ops.token_logprobs(logits, token) - sampled)
    np.testing.assert_allclose(fault, [1.9], rtol=1e-5)  # .2 · .38 / .04, on equal weights
    # top-p kept {0, 1}, mass S = .8: leaving it out multiplies every ratio by S
    kept = jnp.array([[True, True, False]])
    sampled = np.log(0.5 / 0.8)
    token = jnp.array([0])
    ratio = np.exp(ops.token_logprobs(logits, token, allowed=kept) - sampled)
    np.testing.assert_allclose(ratio, [1.0], rtol=1e-6)
    fault = np.exp(ops.token_logprobs(logits, token) - sampled)
    np.testing.assert_allclose(fault, [0.8], rtol=1e-6)


def test_token_outside_the_kept_set_or_the_vocabulary():
    logits = jnp.zeros((4, 3))
    kept = jnp.array([[True, True, False]] * 3 + [[False] * 3])
    got = ops.token_logprobs(logits, jnp.array([2, 0, 3, 1]), allowed=kept)
    assert got[0] == -np.inf and np.isnan(got[2]) and got[3] == -np.inf
    np.testing.assert_allclose(got[1], np.log(0.5), rtol=1e-6)
    assert np.isnan(ops.token_logprobs(logits[:1], jnp.array([-1])))[0]  # not the last token


def test_rows_beyond_the_tokenizer_have_no_probability_and_no_gradient():
    # B10: five embedding rows, three real tokens
    real = jnp.array([True, True, True, False, False])
    logits = jnp.array([[1.0, 2.0, 3.0, 50.0, jnp.nan]])
    token = jnp.array([1])
    value, gradient = jax.value_and_grad(
        lambda z: ops.token_logprobs(z, token, allowed=real[None]).sum()
    )(logits)
    p = np.exp([1.0, 2.0, 3.0]) / np.exp([1.0, 2.0, 3.0]).sum()
    np.testing.assert_allclose(value, np.log(p[1]), rtol=1e-6)
    np.testing.assert_allclose(gradient[0, :3], [-p[0], 1 - p[1], -p[2]], rtol=1e-5)
    np.testing.assert_array_equal(gradient[0, 3:], [0, 0])


def test_token_logprobs_refuses_bad_arguments():
    with pytest.raises(ValueError, match="shape"):
        ops.token_logprobs(jnp.zeros((2, 3)), jnp.zeros((3,), jnp.int32))
    with pytest.raises(ValueError, match="temperature"):
        ops.token_logprobs(jnp.zeros((2, 3)), jnp.zeros((2,), jnp.int32), temperature=0.0)


def test_straight_through_value_is_exact_and_gradient_is_soft():
    soft = jnp.linspace(0.01, 0.99, 97)
    hard = soft > 0.5
    np.testing.assert_array_equal(ops.straight_through(hard, soft), hard.astype(np.float32))
    # values of different size, where the usual form is off by rounding: .09997559
    assert ops.straight_through(0.1, 1000.0) == np.float32(0.1)
    large, small = np.float32(1000), np.float32(0.1)
    assert large + (small - large) != small
    gradient = jax.grad(lambda s: (ops.straight_through(s > 0.5, s**2)).sum())(soft)
    np.testing.assert_allclose(gradient, 2 * soft, rtol=1e-6)


def test_global_sum_over_devices():
    assert ops.global_sum(3.0, None) == 3
    got = jax.pmap(lambda x: ops.global_sum(x, "d"), axis_name="d")(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(got, [3.0, 3.0])
