"""Scores of the agents, and of the managers made of them."""

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination.assignment import AssignmentGate, manager_logits

MANAGER_OF = (0, 1, 0)


def test_scores_against_numpy(x64):
    rng = np.random.default_rng(0)
    h, views = rng.normal(size=(4, 8)), rng.normal(size=(4, 2, 8))
    gate = AssignmentGate(MANAGER_OF, d=8, dtype=jnp.float64)
    params = gate.init(jax.random.key(1), h, views)
    got = gate.apply(params, h, views)
    e, w = (np.asarray(params["params"]["agents"]), params["params"]["query"]["kernel"])
    want = np.stack(
        [((h @ w) @ e[a] + views[:, MANAGER_OF[a]] @ e[a]) / np.sqrt(8) for a in range(3)], -1
    )
    np.testing.assert_allclose(got, want, atol=1e-14)
    assert got.dtype == jnp.float64


def test_manager_logits_are_means_over_the_available():
    """Manager 0 owns agents 0 and 2. With 2 missing its mean is 1, not (1 + 0)/2 = .5 or 3."""
    scores = jnp.array([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0], [1.0, 2.0, 5.0]])
    available = jnp.array([[1, 1, 1], [1, 1, 0], [1, 0, 1]], bool)
    logits, allowed = manager_logits(scores, available, MANAGER_OF, 2)
    np.testing.assert_allclose(logits, [[3, 2], [1, 2], [3, 0]])
    np.testing.assert_array_equal(allowed, [[1, 1], [1, 1], [1, 0]])


def test_a_missing_agents_score_is_inert():
    available = jnp.array([[True, True, False]])

    def total(scores):
        return manager_logits(scores, available, MANAGER_OF, 2)[0].sum()

    value, gradient = jax.value_and_grad(total)(jnp.array([[1.0, 2.0, jnp.nan]]))
    assert value == 3
    np.testing.assert_array_equal(gradient, [[1, 1, 0]])
