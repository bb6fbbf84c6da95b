"""KL divergences: exact forms, estimators and their gradients (fault A07), masks and -inf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives import kl as lib

POLICY, REF = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
LOGITS, REF_LOGITS = jnp.log(jnp.array(POLICY)), jnp.log(jnp.array(REF))
EXACT = 0.08512283  # Σ p log(p/q)
TRUE_GRADIENT = [0.17594459, -0.09811759, -0.077827]


def expected_gradient(estimator, ratio=False):
    """Exact expectation, over the three actions, of the gradient of a loss on the drawn action."""

    def drawn(logits, action):
        log_prob = jax.nn.log_softmax(logits)[action]
        ref = jax.nn.log_softmax(REF_LOGITS)[action]
        value = lib.kl_estimate(log_prob, ref, estimator=estimator)
        return value * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob)) if ratio else value

    return sum(p * jax.grad(drawn)(LOGITS, i) for i, p in enumerate(POLICY))


@pytest.mark.parametrize("estimator, want", [("k1", 0.5), ("k2", 0.125), ("k3", 0.10653066)])
def test_a07_values(estimator, want):
    np.testing.assert_allclose(lib.kl_estimate(-1.0, -1.5, estimator=estimator), want, atol=1e-6)


def test_a07_arguments_swapped_is_another_number():
    np.testing.assert_allclose(lib.kl_estimate(-1.5, -1.0, estimator="k3"), 0.14872127, atol=1e-6)


def test_a07_means_under_the_policy():
    for estimator in ("k1", "k3"):
        mean = POLICY @ np.asarray(lib.kl_estimate(LOGITS, REF_LOGITS, estimator=estimator))
        np.testing.assert_allclose(mean, EXACT, atol=1e-6)
    np.testing.assert_allclose(lib.categorical_kl(LOGITS, REF_LOGITS), EXACT, atol=1e-6)
    swapped = lib.categorical_kl(REF_LOGITS, LOGITS)
    assert abs(swapped - EXACT) > 5e-3


def test_a07_gradients():
    np.testing.assert_allclose(
        jax.grad(lib.categorical_kl)(LOGITS, REF_LOGITS), TRUE_GRADIENT, atol=1e-6
    )
    np.testing.assert_allclose(expected_gradient("k1"), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(expected_gradient("k2"), TRUE_GRADIENT, atol=1e-6)
    np.testing.assert_allclose(expected_gradient("k3"), [0.2, -0.1, -0.1], atol=1e-6)
    for estimator in ("k1", "k3"):
        np.testing.assert_allclose(
            expected_gradient(estimator, ratio=True), TRUE_GRADIENT, atol=1e-6
        )


def test_a07_k1_is_refused_as_a_loss_unless_weighted_by_the_ratio():
    arguments = (LOGITS[None], REF_LOGITS[None], jnp.ones((1, 3), bool))
    options = {"aggregation": "token_mean", "denominator": 3}
    with pytest.raises(ValueError, match="k1"):
        lib.kl_loss(*arguments, estimator="k1", **options)
    with pytest.raises(ValueError, match="choose from"):
        lib.kl_loss(*arguments, estimator="k4", **options)
    log_ratio = jnp.log(jnp.array([[1.0, 2.0, 0.5]]))
    got = lib.kl_loss(*arguments, estimator="k1", log_ratio=log_ratio, **options)
    np.testing.assert_allclose(got, (np.log(POLICY / REF) * [1, 2, 0.5]).mean(), rtol=1e-5)


def test_no_gradient_to_the_reference():
    slope = jax.grad(lambda ref: lib.kl_estimate(LOGITS, ref).sum())(REF_LOGITS)
    np.testing.assert_array_equal(slope, np.zeros(3))


def test_k3_keeps_small_differences_and_bounds_large_ones():
    # d = 1e-3: d²/2 + d³/6; exp(d) − 1 − d in float32 is wrong in the second digit
    got = lib.kl_estimate(jnp.float32(0.0), jnp.float32(1e-3))
    np.testing.assert_allclose(got, 5.0017e-7, rtol=2e-3)
    plain = np.exp(np.float32(1e-3)) - np.float32(1) - np.float32(1e-3)
    assert abs(plain - 5.0017e-7) > 1e-8
    value, slope = jax.value_and_grad(lib.kl_estimate)(jnp.float32(-300.0), jnp.float32(0.0))
    assert np.isfinite(value) and np.isfinite(slope)
    assert lib.kl_estimate(-1.0, -1.0) == 0


def test_masked_tokens_are_inert():
    log_prob = jnp.array([[-1.0, -2.0, jnp.nan], [-0.5, -jnp.inf, 3.0]])
    ref = jnp.array([[-1.5, -2.0, 0.0], [-0.25, -jnp.inf, jnp.nan]])
    mask = jnp.array([[1, 1, 0], [1, 0, 0]], bool)

    def loss(x, ratio=None):
        return lib.kl_loss(x, ref, mask, aggregation="token_mean", denominator=3, log_ratio=ratio)

    value, slope = jax.value_and_grad(loss)(log_prob)
    k3 = lambda d: np.exp(d) - d - 1  # noqa: E731
    np.testing.assert_allclose(value, (k3(-0.5) + 0 + k3(0.25)) / 3, rtol=1e-5)
    # d/dlogp of k3 is 1 − e^d
    want = np.array([[1 - np.exp(-0.5), 0, 0], [1 - np.exp(0.25), 0, 0]]) / 3
    np.testing.assert_allclose(slope, want, atol=1e-6)
    assert loss(log_prob, jnp.where(mask, 0.0, jnp.inf)) == value  # ratio 1


def bernoulli_reference(a, b):
    p, q = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def test_bernoulli_against_numpy_and_as_a_two_way_categorical():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50)) * 3
    x, y = jnp.array(a, jnp.float32), jnp.array(b, jnp.float32)
    got = lib.bernoulli_kl(x, y)
    np.testing.assert_allclose(got, bernoulli_reference(a, b), rtol=1e-4, atol=1e-6)
    zeros = jnp.zeros(50)
    pairs = lib.categorical_kl(jnp.stack([x, zeros], -1), jnp.stack([y, zeros], -1))
    np.testing.assert_allclose(got, pairs, rtol=1e-4, atol=1e-6)
    slope = jax.grad(lambda x: lib.bernoulli_kl(x, y).sum())(x)
    p = 1 / (1 + np.exp(-a))
    np.testing.assert_allclose(slope, p * (1 - p) * (a - b), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kl", [lib.bernoulli_kl, lib.categorical_kl])
def test_equal_logits_give_exactly_zero_and_no_gradient(kl):
    logits = jnp.array(np.random.default_rng(1).normal(size=(20, 6)) * 9, jnp.float32)
    value, slope = jax.value_and_grad(lambda x: kl(x, logits).sum())(logits)
    assert value == 0
    np.testing.assert_allclose(slope, np.zeros((20, 6)), atol=1e-6)


@pytest.mark.parametrize("kl", [lib.bernoulli_kl, lib.categorical_kl])
def test_never_negative(kl):
    rng = np.random.default_rng(2)
    logits = jnp.array(rng.normal(size=(500, 4)) * 3, jnp.float32)
    near = logits * (1 + 1e-7 * jnp.array(rng.normal(size=(500, 4)), jnp.float32))
    assert (np.asarray(kl(logits, near)) >= 0).all()


def test_bernoulli_extremes_and_mask():
    a = jnp.array([-jnp.inf, jnp.inf, -jnp.inf, 40.0, -40.0, jnp.nan])
    b = jnp.array([-jnp.inf, jnp.inf, 0.0, -40.0, 40.0, 1.0])
    mask = jnp.array([1, 1, 1, 1, 1, 0], bool)
    got = lib.bernoulli_kl(a, b, mask)
    # certain in both: 0; never against ½: log 2; sure against almost never: 40 + 40 − …
    np.testing.assert_allclose(got, [0, 0, np.log(2), 40, 40, 0], rtol=1e-5)
    slope = jax.grad(lambda x: lib.bernoulli_kl(x, b, mask).sum())(a)
    assert np.isfinite(slope).all() and slope[5] == 0
    assert lib.bernoulli_kl(jnp.zeros(1), jnp.full(1, -jnp.inf))[0] == np.inf


def test_categorical_masked_renormalises_both():
    # B10: two ways to forbid a category, finite gradients, rows with nothing allowed
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 4, 5))
    mask = rng.random((4, 5)) < 0.6
    mask[0, :2], mask[3] = True, False
    p = np.where(mask, np.exp(a), 0)
    q = np.where(mask, np.exp(b), 0)
    p, q = (x / np.maximum(x.sum(-1, keepdims=True), 1e-30) for x in (p, q))
    want = np.where(mask, p * np.log(np.where(mask, p, 1) / np.where(mask, q, 1)), 0).sum(-1)
    x, y, m = jnp.array(a, jnp.float32), jnp.array(b, jnp.float32), jnp.array(mask)
    by_mask = lib.categorical_kl(jnp.where(m, x, jnp.nan), jnp.where(m, y, jnp.nan), m)
    np.testing.assert_allclose(by_mask, want, atol=1e-6)
    by_inf = lib.categorical_kl(jnp.where(m, x, -jnp.inf), jnp.where(m, y, -jnp.inf))
    np.testing.assert_allclose(by_inf, want, atol=1e-6)
    for form in (
        lambda x: lib.categorical_kl(x, y, m).sum(),
        lambda x: lib.categorical_kl(jnp.where(m, x, -jnp.inf), jnp.where(m, y, -jnp.inf)).sum(),
    ):
        slope = np.asarray(jax.grad(form)(x))
        assert np.isfinite(slope).all() and (slope[~mask] == 0).all()
        np.testing.assert_allclose(
            slope[:3], (p * (np.where(mask, np.log(p / np.where(mask, q, 1) + 1e-30), 0)
                             - want[:, None]))[:3], atol=1e-5)
    unrenormalised = np.where(mask, np.exp(a) / np.exp(a).sum(-1, keepdims=True), 0)
    assert np.abs(unrenormalised - p)[:3].max() > 0.05  # the mask matters


def test_categorical_may_do_what_the_reference_never_does():
    got = lib.categorical_kl(jnp.zeros((1, 2)), jnp.array([[0.0, -jnp.inf]]))
    assert got[0] == np.inf
    other_way = lib.categorical_kl(jnp.array([[0.0, -jnp.inf]]), jnp.zeros((1, 2)))
    np.testing.assert_allclose(other_way, [np.log(2)], rtol=1e-6)


def test_axis_and_double_precision(x64):
    a, b = np.random.default_rng(4).normal(size=(2, 3, 4))
    got = lib.categorical_kl(jnp.array(a), jnp.array(b), axis=0)
    assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, lib.categorical_kl(jnp.array(a.T), jnp.array(b.T)), atol=1e-14)
    with pytest.raises(ValueError, match="shape"):
        lib.bernoulli_kl(jnp.zeros(2), jnp.zeros(3))
