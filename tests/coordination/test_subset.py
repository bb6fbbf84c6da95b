"""The conditioned Bernoulli law against enumeration of all sets."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination import subset

LOGITS = np.array([0.3, -1.2, 2.0, -0.4, 0.9])
OTHER = np.array([-0.5, 0.4, 1.1, -2.0, 0.1])
ALLOWED = [
    (True, True, True, True, True),
    (True, False, True, True, False),
    (False, True, False, False, True),
    (False, False, True, False, False),
]


def enumerate_law(logits, allowed):
    """All non-empty sets inside the allowed ones with their probabilities, from the definition."""
    p = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    sets, weights = [], []
    for bits in itertools.product([False, True], repeat=len(p)):
        bits = np.array(bits)
        if bits.any() and not (bits & ~np.array(allowed)).any():
            sets.append(bits)
            weights.append(np.prod(np.where(bits, p, 1 - p)[list(allowed)]))
    return np.array(sets), np.array(weights) / np.sum(weights)


@pytest.mark.parametrize("allowed", ALLOWED)
def test_four_formulas_by_enumeration(x64, allowed):
    sets, probs = enumerate_law(LOGITS, allowed)
    mask = np.broadcast_to(np.array(allowed), sets.shape)
    p = 1 / (1 + np.exp(-LOGITS[list(allowed)]))
    log_z = subset.log_normalizer(LOGITS, np.array(allowed))
    np.testing.assert_allclose(log_z, np.log(1 - np.prod(1 - p)), atol=2e-14)
    logits = np.broadcast_to(LOGITS, sets.shape)
    np.testing.assert_allclose(
        subset.log_prob(sets, logits, mask), np.log(probs), rtol=0, atol=2e-14
    )
    np.testing.assert_allclose(
        subset.marginals(LOGITS, np.array(allowed)), probs @ sets, rtol=0, atol=2e-14
    )
    _, other = enumerate_law(OTHER, allowed)
    want = np.sum(probs * (np.log(probs) - np.log(other)))
    np.testing.assert_allclose(
        subset.kl(LOGITS, OTHER, np.array(allowed)), want, rtol=0, atol=2e-14
    )


@pytest.mark.parametrize("allowed", ALLOWED)
def test_decisions_are_the_conditionals(x64, allowed):
    """Each equals P(b_i | b_<i) by enumeration; the forced ones are exactly the certain ones."""
    sets, probs = enumerate_law(LOGITS, allowed)
    mask = np.broadcast_to(np.array(allowed), sets.shape)
    got = subset.decisions(sets, np.broadcast_to(LOGITS, sets.shape), mask)
    want = np.zeros(sets.shape)
    for row, bits in enumerate(sets):
        for i in range(len(LOGITS)):
            before = (sets[:, :i] == bits[:i]).all(1)
            same = before & (sets[:, i] == bits[i])
            want[row, i] = np.log(probs[same].sum() / probs[before].sum())
    np.testing.assert_allclose(got.log_probs, want, rtol=0, atol=2e-14)
    np.testing.assert_array_equal(got.free, want < -1e-9)
    np.testing.assert_allclose(got.log_probs.sum(-1), np.log(probs), rtol=0, atol=2e-14)


def test_hand_numbers():
    """Two fair coins: Z = 3/4, every set 1/3 and marginals 2/3.

    Without conditioning (the likely bug) they would be 1/4 and 1/2.
    """
    sets = np.array([[1, 0], [0, 1], [1, 1]], bool)
    zeros, allowed = np.zeros((3, 2), np.float32), np.ones((3, 2), bool)
    got = np.exp(subset.log_prob(sets, zeros, allowed))
    np.testing.assert_allclose(got, [1 / 3] * 3, rtol=1e-6)
    assert not np.allclose(got, 1 / 4)
    np.testing.assert_allclose(subset.marginals(zeros[0], allowed[0]), [2 / 3] * 2, rtol=1e-6)


@pytest.mark.parametrize("allowed", ALLOWED)
def test_sampler_draws_the_law(allowed):
    sets, probs = enumerate_law(LOGITS, allowed)
    n = 40_000
    draws = np.asarray(
        subset.sample(jax.random.key(0), jnp.float32(LOGITS), np.array(allowed), (n,))
    )
    assert draws.shape == (n, 5) and draws.any(-1).all()
    counts = np.array([(draws == s).all(-1).sum() for s in sets])
    assert counts.sum() == n  # nothing outside the allowed sets
    expected = probs * n
    chi2 = np.sum((counts - expected) ** 2 / expected)
    dof = len(sets) - 1
    assert chi2 <= dof + 5 * np.sqrt(2 * dof) + 1e-9, (chi2, dof)


def test_sampler_at_tiny_logits_is_uniform_over_singletons():
    """At −40 the law is one element, chosen uniformly; a rounded Z would give the last always."""
    logits = jnp.full((4,), -40.0)
    draws = np.asarray(subset.sample(jax.random.key(1), logits, jnp.ones(4, bool), (20_000,)))
    assert (draws.sum(-1) == 1).all()
    np.testing.assert_allclose(draws.mean(0), 0.25, atol=0.02)


@pytest.mark.parametrize("level", [-40.0, -90.0, 40.0])
def test_float32_extremes_are_finite(level):
    """Values and gradients of all functions at −40 (and beyond) in float32."""
    logits = jnp.array([level, level - 1, level + 0.5], jnp.float32)
    reference = logits[::-1] * 0.9
    bits, allowed = jnp.array([True, False, False]), jnp.ones(3, bool)
    for function in (
        lambda s: subset.log_normalizer(s, allowed),
        lambda s: subset.log_prob(bits, s, allowed),
        lambda s: subset.decisions(bits, s, allowed).log_probs.sum(),
        lambda s: subset.kl(s, reference, allowed),
        lambda s: subset.marginals(s, allowed)[0],
    ):
        value, gradient = jax.value_and_grad(function)(logits)
        assert np.isfinite(value) and np.isfinite(gradient).all(), (level, value, gradient)


def test_float32_matches_float64_where_the_plain_form_fails():
    """1 − Π(1 − p) in float32 is 0 at −40: log gives −inf and the gradient is not a number."""
    logits32 = jnp.array([-40.0, -39.0, -41.0], jnp.float32)
    allowed = jnp.ones(3, bool)

    def plain(s):
        return jnp.log(1 - jnp.prod(1 - jax.nn.sigmoid(s)))

    value, gradient = jax.value_and_grad(plain)(logits32)
    assert np.isneginf(value) and not np.isfinite(gradient).all()

    value, gradient = jax.value_and_grad(lambda s: subset.log_normalizer(s, allowed))(logits32)
    # For small p: log Z = log Σ p_i, whose gradient is the share of each p_i.
    p = np.exp(np.float64(logits32))
    np.testing.assert_allclose(value, np.log(p.sum()), rtol=1e-6)
    np.testing.assert_allclose(gradient, p / p.sum(), rtol=1e-5)


@pytest.mark.parametrize("level", [-30.0, -16.0, -2.0, 5.0])
def test_float32_log_prob_agrees_with_enumeration(level):
    logits = np.float32([level, level + 1.5, level - 0.7])
    sets, probs = enumerate_law(logits, (True,) * 3)
    keep = probs > 1e-30
    mask = np.ones(sets.shape, bool)
    got = subset.log_prob(sets, np.broadcast_to(logits, sets.shape), mask)
    np.testing.assert_allclose(np.asarray(got)[keep], np.log(probs[keep]), rtol=1e-5, atol=2e-5)


def test_forced_and_empty_rows_decide_nothing():
    logits = jnp.array([[0.7, -0.3, 2.0], [0.7, -0.3, 2.0]])
    allowed = jnp.array([[False, True, False], [False, False, False]])
    for function in (
        lambda s: subset.log_prob(allowed, s, allowed),
        lambda s: subset.kl(s, s[:, ::-1] * 2, allowed),
        lambda s: subset.decisions(allowed, s, allowed).log_probs.sum(-1),
    ):
        np.testing.assert_array_equal(function(logits), [0.0, 0.0])
        np.testing.assert_array_equal(jax.grad(lambda s, f=function: f(s).sum())(logits), 0.0)
    assert not subset.decisions(allowed, logits, allowed).free.any()
    np.testing.assert_array_equal(subset.takes_part(allowed), [False, False])
    np.testing.assert_array_equal(subset.sample(jax.random.key(0), logits, allowed), allowed)
    np.testing.assert_array_equal(subset.threshold(logits, allowed), allowed)
    np.testing.assert_array_equal(subset.marginals(logits, allowed), allowed)


def test_elements_outside_the_allowed_set_are_inert():
    """Any logit, even NaN, of an element that is not allowed changes neither value nor gradient."""
    allowed = jnp.array([True, False, True, True])
    bits = jnp.array([True, True, False, True])
    clean = jnp.array([0.3, 0.0, -1.0, 0.8])
    dirty = clean.at[1].set(jnp.nan)
    for function in (
        lambda s: subset.log_prob(bits, s, allowed),
        lambda s: subset.kl(s, clean * 2, allowed),
        lambda s: subset.decisions(bits, s, allowed).log_probs.sum(),
    ):
        value, gradient = jax.value_and_grad(function)(dirty)
        want, want_gradient = jax.value_and_grad(function)(clean)
        np.testing.assert_array_equal(value, want)
        np.testing.assert_array_equal(gradient, want_gradient)
        assert gradient[1] == 0


@pytest.mark.parametrize("allowed", ALLOWED)
def test_half_threshold_is_the_mode(allowed):
    for logits in (LOGITS, OTHER, LOGITS - 3.0, OTHER - 3.0):
        sets, probs = enumerate_law(logits, allowed)
        best = sets[np.argmax(probs)]
        np.testing.assert_array_equal(subset.threshold(logits, np.array(allowed)), best)


def test_other_threshold_and_fallback():
    # σ(−.5) = .378 ≥ .35, σ(−.7) = .332 < .35
    allowed = np.array([True, True, True])
    np.testing.assert_array_equal(
        subset.threshold(np.array([-0.5, -0.7, -0.55]), allowed, 0.35), [True, False, True]
    )
    np.testing.assert_array_equal(
        subset.threshold(np.array([-2.0, -0.7, -0.7]), allowed, 0.35), [False, True, False]
    )


def test_kl_is_zero_and_flat_at_the_reference_and_has_the_true_gradient(x64):
    allowed = np.array(ALLOWED[0])
    value, gradient = jax.value_and_grad(lambda s: subset.kl(s, LOGITS, allowed))(LOGITS)
    assert value == 0
    np.testing.assert_allclose(gradient, 0, atol=1e-15)
    gradient = jax.grad(lambda s: subset.kl(s, OTHER, allowed))(LOGITS)
    for i in range(5):
        step = 1e-6 * np.eye(5)[i]
        up, down = (
            subset.kl(LOGITS + step, OTHER, allowed),
            subset.kl(LOGITS - step, OTHER, allowed),
        )
        np.testing.assert_allclose(gradient[i], (up - down) / 2e-6, atol=1e-8)


def test_broadcasts_one_row_of_logits_over_rollouts_and_refuses_other_ranks():
    logits = jnp.array([[[0.2, -0.4, 1.0]], [[1.0, 0.0, -1.0]]])  # [Q, 1, A]
    allowed = jnp.ones((2, 4, 3), bool).at[0, 1, 0].set(False)  # [Q, G, A]
    draws = subset.sample(jax.random.key(0), logits, allowed)
    got = subset.log_prob(draws, logits, allowed)
    assert draws.shape == (2, 4, 3) and got.shape == (2, 4)
    for q, g in itertools.product(range(2), range(4)):
        alone = subset.log_prob(draws[q, g], logits[q, 0], allowed[q, g])
        np.testing.assert_allclose(got[q, g], alone, rtol=1e-6)
    with pytest.raises(ValueError, match="same rank"):
        subset.log_prob(draws, logits[:, 0], allowed)
