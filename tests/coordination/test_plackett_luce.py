"""Ordered draws without replacement against enumeration of the orders."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination import plackett_luce

LOGITS = np.array([0.3, -1.2, 1.4, -0.4])
OTHER = np.array([-0.5, 0.4, 0.1, 1.0])
ALLOWED = [(True, True, True, True), (True, False, True, True), (False, True, False, True)]


def orders(logits, allowed, k):
    """Every ordered draw (padded with −1) and its probability, from the definition."""
    agents = np.flatnonzero(allowed)
    out, probs = [], []
    for order in itertools.permutations(agents, min(k, len(agents))):
        left, p = list(agents), 1.0
        for pick in order:
            p *= np.exp(logits[pick]) / np.exp(logits[left]).sum()
            left.remove(pick)
        out.append(list(order) + [plackett_luce.NOT_DRAWN] * (k - len(order)))
        probs.append(p)
    return np.array(out), np.array(probs)


@pytest.mark.parametrize("allowed", ALLOWED)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_log_prob_and_kl_by_enumeration(x64, allowed, k):
    draws, probs = orders(LOGITS, allowed, k)
    np.testing.assert_allclose(probs.sum(), 1.0)
    mask = np.broadcast_to(np.array(allowed), (len(draws), 4))
    logits = np.broadcast_to(LOGITS, mask.shape)
    got = plackett_luce.log_prob(draws, logits, mask)
    np.testing.assert_allclose(got, np.log(probs), atol=2e-14)
    _, other = orders(OTHER, allowed, k)
    want = np.sum(probs * np.log(probs / other))
    got = plackett_luce.kl(LOGITS, OTHER, np.array(allowed), k)
    np.testing.assert_allclose(got, want, atol=2e-14)
    assert plackett_luce.kl(LOGITS, LOGITS, np.array(allowed), k) == 0


def test_the_order_is_scored_not_the_set(x64):
    """Softmax (½, ¼, ¼): order (0, 1) has ½ · ½ = ¼; with replacement (the bug) ½ · ¼ = ⅛."""
    logits = np.log([0.5, 0.25, 0.25])
    got = np.exp(plackett_luce.log_prob(np.array([0, 1]), logits, np.ones(3, bool)))
    np.testing.assert_allclose(got, 0.25, atol=1e-15)
    swapped = np.exp(plackett_luce.log_prob(np.array([1, 0]), logits, np.ones(3, bool)))
    np.testing.assert_allclose(swapped, 0.25 * 0.5 / 0.75, atol=1e-15)


def test_sampler_draws_the_law():
    allowed = ALLOWED[1]
    draws, probs = orders(LOGITS, allowed, 2)
    n = 30_000
    got = np.asarray(plackett_luce.sample(jax.random.key(0), LOGITS, np.array(allowed), 2, (n,)))
    counts = np.array([(got == d).all(-1).sum() for d in draws])
    assert counts.sum() == n
    chi2 = np.sum((counts - probs * n) ** 2 / (probs * n))
    assert chi2 < 5 + 5 * np.sqrt(10)


def test_fewer_allowed_than_k():
    """k_eff = min(k, allowed): everyone, then NOT_DRAWN; nobody allowed: an empty draw."""
    allowed = jnp.array([[False, True, False, True], [False, True, False, False], [False] * 4])
    logits = jnp.tile(jnp.asarray(LOGITS), (3, 1))
    draw = plackett_luce.sample(jax.random.key(0), logits, allowed, 3)
    np.testing.assert_array_equal((draw >= 0).sum(-1), [2, 1, 0])
    np.testing.assert_array_equal(plackett_luce.to_mask(draw, 4), allowed)
    np.testing.assert_array_equal(plackett_luce.mode(logits, allowed, 3)[0], [3, 1, -1])
    split = plackett_luce.decisions(draw, logits, allowed)
    np.testing.assert_array_equal(split.free, [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(plackett_luce.takes_part(allowed), [True, False, False])
    for function in (
        lambda s: plackett_luce.log_prob(draw, s, allowed)[1:],
        lambda s: plackett_luce.kl(s, s[:, ::-1], allowed, 3)[1:],
    ):
        np.testing.assert_array_equal(function(logits), 0.0)
        np.testing.assert_array_equal(jax.grad(lambda s, f=function: f(s).sum())(logits), 0.0)


def test_mode_breaks_ties_to_the_lowest():
    got = plackett_luce.mode(np.array([1.0, 3.0, 3.0, 1.0]), np.ones(4, bool), 3)
    np.testing.assert_array_equal(got, [1, 2, 0])


@pytest.mark.parametrize("level", [-90.0, 90.0])
def test_float32_extremes_and_dirty_outsiders(level):
    logits = jnp.array([level, 0.0, -level, jnp.nan])
    allowed = jnp.array([True, True, True, False])
    for function in (
        lambda s: plackett_luce.log_prob(jnp.array([1, 0]), s, allowed),
        lambda s: plackett_luce.kl(s, jnp.zeros(4), allowed, 2),
    ):
        value, gradient = jax.value_and_grad(function)(logits)
        assert np.isfinite(value) and np.isfinite(gradient).all() and gradient[3] == 0


def test_errors_name_the_choices():
    with pytest.raises(ValueError, match=r"k must be in \[1, 4\].*5"):
        plackett_luce.sample(jax.random.key(0), LOGITS, np.ones(4, bool), 5)
    with pytest.raises(ValueError, match="at most 12 agents; got 13"):
        plackett_luce.kl(np.zeros(13), np.zeros(13), np.ones(13, bool), 2)
