"""Rewards: missing parts (fault A10) and GRADE's reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives import advantages
from gradejax.objectives import rewards as lib

PARTS = {"correct": jnp.array([1.0, 1.0, jnp.nan]), "format": jnp.array([1.0, jnp.nan, jnp.nan])}
WEIGHTS = {"correct": 1.0, "format": 0.5}


def test_a10_missing_parts_are_left_out_of_a_plain_sum():
    got = lib.combine_parts(PARTS, WEIGHTS)
    # not renormalised (1 · 1.5 / 1), not NaN, not 0 for the row without any part
    np.testing.assert_allclose(got.total[:2], [1.5, 1.0])
    np.testing.assert_array_equal(got.scored, [True, True, False])
    assert got.missing == {"correct": 1, "format": 2} and got.unscored == 1
    assert np.isfinite(got.total).all()


def test_a10_an_unscored_row_leaves_the_group():
    got = lib.combine_parts(PARTS, WEIGHTS)
    options = {"num_groups": 1, "scale": "none"}
    ids = jnp.zeros(3, jnp.int32)
    right, stats = advantages.group_relative(got.total, ids, got.scored, **options)
    np.testing.assert_allclose(right, [0.25, -0.25, 0], atol=1e-6)
    assert stats.rows == 2
    as_zero, _ = advantages.group_relative(got.total, ids, jnp.ones(3, bool), **options)
    np.testing.assert_allclose(as_zero, [2 / 3, 1 / 6, -5 / 6], atol=1e-6)  # refused
    raw = PARTS["correct"] + 0.5 * PARTS["format"]
    as_nan, _ = advantages.group_relative(raw, ids, jnp.ones(3, bool), **options)
    assert np.isnan(as_nan).all()  # refused


def test_present_and_valid_masks():
    got = lib.combine_parts(
        {"a": jnp.array([1.0, 7.0, 3.0]), "b": jnp.array([1.0, 1.0, jnp.nan])}, {"a": 1, "b": -1},
        valid=jnp.array([True, True, False]), present={"a": jnp.array([True, False, True])},
    )
    np.testing.assert_array_equal(got.total, [0.0, -1.0, 0.0])
    np.testing.assert_array_equal(got.scored, [True, True, False])
    # the padding row is not counted as missing
    assert got.missing == {"a": 1, "b": 0} and got.unscored == 0


def test_infinite_parts_stay_visible():
    got = lib.combine_parts({"a": jnp.array([jnp.inf])}, {"a": 1.0})
    assert got.total[0] == np.inf and got.scored[0]


@pytest.mark.parametrize(
    "parts, weights, present",
    [
        ({}, {}, None),
        ({"a": jnp.zeros(2)}, {"b": 1.0}, None),
        ({"a": jnp.zeros(2), "b": jnp.zeros(3)}, {"a": 1.0, "b": 1.0}, None),
        ({"a": jnp.zeros(2)}, {"a": 1.0}, {"c": jnp.ones(2, bool)}),
    ],
)
def test_bad_parts_are_refused(parts, weights, present):
    with pytest.raises(ValueError, match="got|choose from"):
        lib.combine_parts(parts, weights, present=present)


def grade(**changes):
    agents = [[-0.5, -1.5, np.nan], [-0.1, -np.inf, 0.0], [-0.1, -0.2, -0.3]]
    arguments = {
        "correct": jnp.array([True, False, False]),
        "system_log_prob": jnp.array([-0.2, -9.0, -1.0]),
        "agent_log_probs": jnp.array(agents),
        "agents": jnp.array([[1, 1, 0], [0, 1, 0], [1, 1, 1]], bool),
        "cost": jnp.array([0.5, 1.0, 0.1]),
        "gold_present": jnp.array([True, True, False]),
    }
    return lib.grade_reward(**(arguments | changes))


def test_grade_reward_by_hand():
    got = jax.jit(grade)()
    # 2 + .1·(−.2) + .05·(−1) − .05·.5; clamps: .1·(−5) + .05·(−5) − .05; no gold: both −5
    np.testing.assert_allclose(got.total, [1.905, -0.8, -0.755], rtol=1e-6)
    np.testing.assert_allclose(got.correctness, [2, 0, 0])
    np.testing.assert_allclose(got.system, [-0.02, -0.5, -0.5], rtol=1e-6)
    np.testing.assert_allclose(got.agents, [-0.05, -0.25, -0.25], rtol=1e-6)
    np.testing.assert_allclose(got.cost, [-0.025, -0.05, -0.005], rtol=1e-6)
    # the mean over all agents, whether kept or not, is another number
    pool = np.maximum([-0.1, -np.inf, 0.0], -5).mean() * 0.05
    assert abs(got.agents[1] - pool) > 0.1


def test_grade_reward_of_padding_is_finite_and_agents_outside_are_inert():
    got = grade(agents=jnp.zeros((3, 3), bool))
    np.testing.assert_array_equal(got.agents, np.zeros(3))
    other = [[-0.5, -1.5, 7.0], [np.nan, -np.inf, np.inf], [0.0, 0.0, 0.0]]
    base, changed = grade(), grade(agent_log_probs=jnp.array(other))
    np.testing.assert_array_equal(base.total, changed.total)


def test_grade_reward_has_no_gradient_and_takes_weights():
    slope = jax.grad(lambda x: grade(system_log_prob=x).total.sum())(jnp.array([-0.2, -9.0, -1.0]))
    np.testing.assert_array_equal(slope, np.zeros(3))
    got = lib.grade_reward(
        jnp.array([True]), jnp.array([-2.0]), jnp.array([[-3.0]]), jnp.ones((1, 1), bool),
        jnp.array([0.5]), jnp.array([True]), system_weight=1.0, agent_weight=1.0, cost_weight=1.0,
        correct_weight=1.0, floor=-2.5,
    )
    np.testing.assert_allclose(got.total, [1 - 2 - 2.5 - 0.5])
    with pytest.raises(ValueError, match=r"\[N, A\]"):
        grade(agents=jnp.ones((3, 2), bool))
