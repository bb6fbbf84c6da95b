"""Edges: the law of the hard edge, its score, and the pair MLP."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from gradejax.coordination import cross_read

LOGITS = np.array([[9.0, 0.4, -1.0], [1.3, -9.0, 0.2], [-0.6, 2.0, 9.0]])
OTHER = LOGITS.T * 0.5


def test_gate_is_the_mlp_on_the_concatenated_pair(x64):
    messages = np.random.default_rng(0).normal(size=(2, 3, 4))
    gate = cross_read.ReadGate(d=4, dtype=jnp.float64)
    params = gate.init(jax.random.key(0), messages)
    p = params["params"]
    got = gate.apply(params, messages)
    kernel = np.concatenate([p["reader"]["kernel"], p["read"]["kernel"]])
    for q, a, b in itertools.product(range(2), range(3), range(3)):
        x = np.concatenate([messages[q, a], messages[q, b]]) @ kernel + p["reader"]["bias"]
        x = x * 0.5 * (1 + erf(x / np.sqrt(2)))
        want = x @ p["out"]["kernel"] + p["out"]["bias"]
        np.testing.assert_allclose(got[q, a, b], want[0], atol=1e-14)
    assert abs(got[0, 0, 1] - got[0, 1, 0]) > 1e-3  # reading is directed


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_hard_edges_are_bernoulli_whatever_the_temperature(temperature):
    members = np.array([True, True, True])
    draw = cross_read.sample(
        jax.random.key(0), LOGITS, members, temperature=temperature, shape=(20_000,)
    )
    share = np.asarray(draw.hard).mean(0)
    want = np.where(np.eye(3, dtype=bool), 0, 1 / (1 + np.exp(-LOGITS)))
    np.testing.assert_allclose(share, want, atol=0.015)
    np.testing.assert_array_equal(draw.hard, draw.relaxed > 0.5)


def test_log_prob_by_enumeration(x64):
    """Over all edge sets of S = {0, 2} the probabilities are those of two Bernoullis: sum 1."""
    members = np.array([True, False, True])
    p = 1 / (1 + np.exp(-LOGITS))
    total = 0.0
    for e02, e20 in itertools.product([False, True], repeat=2):
        edges = np.ones((3, 3), bool)  # entries outside the pairs are ignored
        edges[0, 2], edges[2, 0] = e02, e20
        got = cross_read.log_prob(edges, LOGITS, members)
        want = np.log(p[0, 2] if e02 else 1 - p[0, 2]) + np.log(p[2, 0] if e20 else 1 - p[2, 0])
        np.testing.assert_allclose(got, want, atol=1e-15)
        total += np.exp(got)
        split = cross_read.decisions(edges, LOGITS, members)
        np.testing.assert_array_equal(split.free, [[0, 0, 1], [0, 0, 0], [1, 0, 0]])
        np.testing.assert_allclose(split.log_probs.sum(), want, atol=1e-15)
    np.testing.assert_allclose(total, 1.0, atol=1e-15)


def test_kl_by_enumeration(x64):
    members = np.array([True, False, True])
    p, r = 1 / (1 + np.exp(-LOGITS)), 1 / (1 + np.exp(-OTHER))
    want = 0.0
    for i, j in ((0, 2), (2, 0)):
        for a, b in ((p[i, j], r[i, j]), (1 - p[i, j], 1 - r[i, j])):
            want += a * np.log(a / b)
    np.testing.assert_allclose(cross_read.kl(LOGITS, OTHER, members), want, atol=1e-14)
    assert cross_read.kl(LOGITS, LOGITS, members) == 0


def test_lone_member_and_nobody_decide_nothing():
    for members in (np.array([False, True, False]), np.zeros(3, bool)):
        value, gradient = jax.value_and_grad(
            lambda s, m=members: (
                cross_read.log_prob(np.ones((3, 3), bool), s, m) + cross_read.kl(s, OTHER, m)
            )
        )(jnp.asarray(LOGITS))
        assert value == 0 and not np.any(gradient)
        assert not cross_read.takes_part(members)
        assert not cross_read.sample(jax.random.key(0), LOGITS, members).hard.any()


def test_read_matrix_has_a_unit_diagonal_and_no_outside_edges():
    members = np.array([True, False, True])
    got = cross_read.read_matrix(np.ones((3, 3), bool), members)
    np.testing.assert_array_equal(got, [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    relaxed = cross_read.read_matrix(np.full((3, 3), 0.3, np.float32), members)
    np.testing.assert_allclose(relaxed, [[1, 0, 0.3], [0, 1, 0], [0.3, 0, 1]])


def test_mode_is_one_half_without_noise():
    logits = np.array([[0.0, 0.0], [-1e-6, 0.0]])
    got = cross_read.mode(logits, np.ones(2, bool))
    np.testing.assert_array_equal(got, [[False, True], [False, False]])


def test_relaxed_edge_has_the_pathwise_gradient():
    """∂σ((l + ε)/ν)/∂l = r (1 − r)/ν; the hard edge has none."""
    members, nu = np.ones(3, bool), 0.5

    def draw(logits):
        return cross_read.sample(jax.random.key(3), logits, members, temperature=nu)

    r = draw(jnp.asarray(LOGITS)).relaxed
    gradient = jax.grad(lambda s: draw(s).relaxed.sum())(jnp.asarray(LOGITS))
    np.testing.assert_allclose(gradient, r * (1 - r) / nu, rtol=1e-5)
    with pytest.raises(ValueError, match="temperature"):
        cross_read.sample(jax.random.key(3), LOGITS, members, temperature=0.0)


@pytest.mark.parametrize("level", [-90.0, 90.0])
def test_float32_extremes_and_dirty_outsiders(level):
    members = np.array([True, True, False])
    logits = jnp.full((3, 3), level).at[2].set(jnp.nan)
    for function in (
        lambda s: cross_read.log_prob(np.zeros((3, 3), bool), s, members),
        lambda s: cross_read.kl(s, jnp.zeros((3, 3)), members),
    ):
        value, gradient = jax.value_and_grad(function)(logits)
        assert np.isfinite(value) and np.isfinite(gradient).all()
