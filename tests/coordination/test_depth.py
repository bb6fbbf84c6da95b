"""Who may be asked at which depth."""

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination import categorical, depth

MANAGER_OF = (0, 1, 0)
AVAILABLE = jnp.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], bool)  # M0 last


def test_allowed_depths():
    np.testing.assert_array_equal(
        depth.allowed_depths(AVAILABLE), [[1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 0, 0]]
    )


def test_allowed_agents_by_depth_and_manager():
    available = jnp.array([True, True, False, True])[None]  # agent 2 is missing
    depths = jnp.array([0, 1, 1, 2])
    managers = jnp.array([0, 0, 1, categorical.NO_CHOICE])
    got = depth.allowed_agents(depths, managers, jnp.tile(available, (4, 1)), MANAGER_OF, 2)
    np.testing.assert_array_equal(got, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])


def test_a_manager_that_was_not_drawn_allows_nobody_at_depth_one():
    got = depth.allowed_agents(
        jnp.array([1]), jnp.array([categorical.NO_CHOICE]), AVAILABLE[:1], MANAGER_OF, 2
    )
    assert not got.any()


def test_allowed_agents_broadcasts_availability_over_rollouts():
    depths = jnp.array([[0, 2], [2, 2]])  # [Q, G]
    managers = jnp.full((2, 2), -1)
    got = depth.allowed_agents(depths, managers, AVAILABLE[:2, None], MANAGER_OF, 2)
    np.testing.assert_array_equal(got, [[[0, 0, 0], [1, 1, 1]], [[1, 0, 0], [1, 0, 0]]])


def test_the_orchestrator_is_a_member_at_depth_zero_only():
    agents = jnp.array([[1, 0, 1], [1, 0, 1]], bool)
    got = depth.with_orchestrator(jnp.array([0, 2]), agents)
    np.testing.assert_array_equal(got, [[0, 0, 0, 1], [1, 0, 1, 0]])


def test_gate_shape_and_dtype(x64):
    h = np.ones((2, 5))
    gate = depth.DepthGate(d=5, dtype=jnp.float64)
    out = gate.apply(gate.init(jax.random.key(0), h), h)
    assert out.shape == (2, depth.NUM_DEPTHS) and out.dtype == jnp.float64
