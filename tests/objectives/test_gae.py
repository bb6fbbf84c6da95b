"""Generalised advantages: hand numbers, a numpy loop, λ = 0 and 1, masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives.gae import generalized_advantages

# γ = .9, λ = .8, V after the end 1:
# δ = (1 + .9·.4 − .5, 0 + .9·.3 − .4, 2 + .9·1 − .3) = (.86, −.13, 2.6)
# A_2 = 2.6; A_1 = −.13 + .72·2.6 = 1.742; A_0 = .86 + .72·1.742 = 2.11424
REWARDS, VALUES = jnp.array([1.0, 0.0, 2.0]), jnp.array([0.5, 0.4, 0.3])
WANT = np.array([2.11424, 1.742, 2.6])


# jit against no jit is compared for every objective in test_objective_conformance.py
compiled = jax.jit(generalized_advantages, static_argnames="lambda_")


def gae(rewards, values, bootstrap, mask, discount, lambda_):
    return compiled(rewards, values, bootstrap, mask, discount=discount, lambda_=lambda_)


def reference(rewards, values, bootstrap, mask, discount, lambda_):
    """Backwards over the unmasked steps only."""
    out, advantage, following = np.zeros(len(rewards)), 0.0, bootstrap
    for t in reversed(np.flatnonzero(mask)):
        advantage = (
            rewards[t] + discount[t] * following - values[t] + discount[t] * lambda_ * advantage
        )
        out[t], following = advantage, values[t]
    return out


def test_by_hand():
    got, returns = gae(REWARDS, VALUES, 1.0, jnp.ones(3, bool), 0.9, 0.8)
    np.testing.assert_allclose(got, WANT, rtol=1e-6)
    np.testing.assert_allclose(returns, WANT + np.asarray(VALUES), rtol=1e-6)
    forgotten_bootstrap, _ = gae(REWARDS, VALUES, 0.0, jnp.ones(3, bool), 0.9, 0.8)
    np.testing.assert_allclose(forgotten_bootstrap[2], 1.7, rtol=1e-6)


@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_a_masked_step_changes_nothing_else(where):
    insert = lambda x, value: jnp.array(np.insert(np.asarray(x), where, value))  # noqa: E731
    got, returns = gae(
        insert(REWARDS, np.nan), insert(VALUES, np.nan), 1.0, insert(jnp.ones(3, bool), False),
        0.9, 0.8,
    )
    np.testing.assert_allclose(got, np.insert(WANT, where, 0), rtol=1e-6)
    assert returns[where] == 0
    if where == 1:
        # multiplying by the mask takes the hole for a step of value 0: A_0 = 1 + 0 − .5 + 0
        assert abs(got[0] - 0.5) > 1


@pytest.mark.parametrize("holes", ["none", "end", "middle", "all"])
def test_against_numpy(holes):
    rng = np.random.default_rng(0)
    length = 11
    rewards, values = rng.normal(size=(2, length))
    discount = np.where(rng.random(length) < 0.2, 0.0, 0.97)  # terminal steps inside
    mask = {
        "none": np.ones(length, bool), "end": np.arange(length) < 7,
        "middle": rng.random(length) < 0.5, "all": np.zeros(length, bool),
    }[holes]
    got, _ = gae(jnp.array(rewards, jnp.float32), jnp.array(values, jnp.float32), 0.7,
                 jnp.array(mask), jnp.array(discount, jnp.float32), 0.9)
    want = reference(rewards, values, 0.7, mask, discount, 0.9)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_lambda_one_is_return_minus_value_and_zero_is_the_difference():
    rng = np.random.default_rng(1)
    rewards, values = jnp.array(rng.normal(size=(2, 6)), jnp.float32)
    ones = jnp.ones(6, bool)
    got, returns = gae(rewards, values, 2.0, ones, 0.9, 1.0)
    want = [
        sum(0.9 ** (s - t) * rewards[s] for s in range(t, 6)) + 0.9 ** (6 - t) * 2.0
        for t in range(6)
    ]
    np.testing.assert_allclose(returns, want, rtol=1e-5)
    np.testing.assert_allclose(got, np.array(want) - values, atol=1e-5)
    following = np.append(np.asarray(values)[1:], 2.0)
    got, _ = gae(rewards, values, 2.0, ones, 0.9, 0.0)
    np.testing.assert_allclose(got, rewards + 0.9 * following - values, atol=1e-6)


def test_vmap_over_trajectories_and_no_gradient():
    batch = jax.vmap(functools.partial(generalized_advantages, discount=0.9, lambda_=0.8))
    rewards, values = jnp.stack([REWARDS, REWARDS]), jnp.stack([VALUES, VALUES])
    mask = jnp.array([[1, 1, 1], [1, 0, 1]], bool)
    got, _ = batch(rewards, values, jnp.array([1.0, 1.0]), mask)
    np.testing.assert_allclose(got[0], WANT, rtol=1e-6)
    np.testing.assert_allclose(got[1], [1 + 0.27 - 0.5 + 0.72 * 2.6, 0, 2.6], rtol=1e-6)
    slope = jax.grad(lambda v: batch(rewards, v, jnp.ones(2), mask)[1].sum())(values)
    np.testing.assert_array_equal(slope, np.zeros((2, 3)))


def test_double_precision_and_bad_shapes(x64):
    got, _ = generalized_advantages(
        jnp.array(np.asarray(REWARDS, np.float64)), jnp.array([0.5, 0.4, 0.3]), 1.0,
        jnp.ones(3, bool), discount=0.9, lambda_=0.8,
    )
    assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, WANT, atol=1e-14)
    with pytest.raises(ValueError, match="vmap"):
        generalized_advantages(jnp.zeros((2, 3)), jnp.zeros((2, 3)), 0.0, jnp.ones((2, 3), bool),
                               discount=0.9, lambda_=0.8)


def test_against_rlax():
    rlax = pytest.importorskip("rlax")
    want = rlax.truncated_generalized_advantage_estimation(
        REWARDS, jnp.full(3, 0.9), 0.8, jnp.append(VALUES, 1.0)
    )
    got, _ = generalized_advantages(REWARDS, VALUES, 1.0, jnp.ones(3, bool), discount=0.9,
                                    lambda_=0.8)
    np.testing.assert_allclose(got, want, rtol=1e-6)
