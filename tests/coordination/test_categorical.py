"""The masked choice against plain numpy, with everything masked and at extreme logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination import categorical

LOGITS = np.array([0.2, 1.5, -0.7, 0.4])
OTHER = np.array([1.0, -0.5, 0.0, 0.3])
ALLOWED = np.array([True, False, True, True])


def reference(logits, allowed):
    p = np.where(allowed, np.exp(logits), 0.0)
    return p / p.sum()


def test_values_against_numpy(x64):
    p, r = reference(LOGITS, ALLOWED), reference(OTHER, ALLOWED)
    np.testing.assert_allclose(categorical.probs(LOGITS, ALLOWED), p, atol=1e-15)
    log_p = np.log(p[ALLOWED])
    np.testing.assert_allclose(
        categorical.entropy(LOGITS, ALLOWED), -np.sum(p[ALLOWED] * log_p), atol=1e-15
    )
    want = np.sum(p[ALLOWED] * (log_p - np.log(r[ALLOWED])))
    np.testing.assert_allclose(categorical.kl(LOGITS, OTHER, ALLOWED), want, atol=1e-15)
    unmasked = np.exp(LOGITS[2]) / np.exp(LOGITS).sum()  # what forgetting the mask gives
    got = categorical.log_prob(jnp.array(2), LOGITS, ALLOWED)
    np.testing.assert_allclose(got, np.log(p[2]), atol=1e-15)
    assert abs(got - np.log(unmasked)) > 0.1


def test_mask_equals_dropping_the_entries():
    kept = np.flatnonzero(ALLOWED)
    full = categorical.entropy(LOGITS, ALLOWED)
    np.testing.assert_allclose(full, categorical.entropy(LOGITS[kept], np.ones(3, bool)), rtol=1e-6)


def test_samples_follow_the_law_and_never_leave_the_mask():
    draws = np.asarray(categorical.sample(jax.random.key(0), LOGITS, ALLOWED, (20_000,)))
    share = np.bincount(draws, minlength=4) / len(draws)
    np.testing.assert_allclose(share, reference(LOGITS, ALLOWED), atol=0.015)
    assert share[1] == 0


def test_mode_takes_the_lowest_of_tied():
    assert categorical.mode(np.array([1.0, 2.0, 2.0]), np.ones(3, bool)) == 1
    assert categorical.mode(np.array([5.0, 2.0, 2.0]), np.array([False, True, True])) == 1


def test_forced_and_empty_rows():
    """One entry: log-probability exactly 0. None: NO_CHOICE. No gradient from either."""
    logits = jnp.array([[0.7, -1.0, 0.1]] * 2)
    allowed = jnp.array([[False, True, False], [False, False, False]])
    choice = categorical.sample(jax.random.key(0), logits, allowed)
    np.testing.assert_array_equal(choice, [1, categorical.NO_CHOICE])
    np.testing.assert_array_equal(categorical.mode(logits, allowed), choice)
    np.testing.assert_array_equal(categorical.takes_part(allowed), [False, False])
    for function in (
        lambda s: categorical.log_prob(choice, s, allowed),
        lambda s: categorical.entropy(s, allowed),
        lambda s: categorical.kl(s, s[:, ::-1] * 3, allowed),
    ):
        np.testing.assert_array_equal(function(logits), [0.0, 0.0])
        np.testing.assert_array_equal(jax.grad(lambda s, f=function: f(s).sum())(logits), 0.0)


def test_a_choice_that_was_not_drawn_scores_zero():
    """NO_CHOICE must not read the last column, as index −1 would."""
    choice = jnp.array([categorical.NO_CHOICE, 1])
    logits = jnp.array([[0.0, 0.0]] * 2)
    got = categorical.log_prob(choice, logits, jnp.ones((2, 2), bool))
    np.testing.assert_allclose(got, [0.0, -np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("level", [-90.0, 90.0])
def test_gradients_are_finite_at_extremes(level):
    logits = jnp.array([level, 0.0, -level, 3.0])
    allowed = jnp.array([True, True, True, False])
    for function in (
        lambda s: categorical.log_prob(jnp.array(1), s, allowed),
        lambda s: categorical.entropy(s, allowed),
        lambda s: categorical.kl(s, jnp.array([-level, 1.0, level, 0.0]), allowed),
    ):
        value, gradient = jax.value_and_grad(function)(logits)
        assert np.isfinite(value) and np.isfinite(gradient).all()
        assert gradient[3] == 0


def test_masked_logit_is_inert():
    dirty = jnp.asarray(LOGITS).at[1].set(jnp.nan)
    np.testing.assert_array_equal(
        categorical.kl(dirty, OTHER, ALLOWED), categorical.kl(LOGITS, OTHER, ALLOWED)
    )
