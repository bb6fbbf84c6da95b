"""What every objective owes: one trace for equal shapes, jit equal to no jit, finite gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax import objectives

N, K, GROUPS = 10, 3, 2
CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.array(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {
        "x": draw(N, K), "y": draw(N, K), "rows": draw(N),
        "mask": jnp.array(rng.random((N, K)) < 0.6),
        "row_mask": jnp.array(rng.random(N) < 0.7),
        "ids": jnp.array(rng.permutation(np.repeat([seed - 5, seed + 40], N // 2)), jnp.int32),
        "count": jnp.array(rng.integers(1, 9)),
    }


# name -> function of the inputs; the first output is differentiated by x
OBJECTIVES = {
    "group_relative": lambda i: objectives.group_relative(
        i["rows"], i["ids"], i["row_mask"], num_groups=GROUPS
    ),
    "leave_one_out": lambda i: objectives.group_relative(
        i["rows"], i["ids"], i["row_mask"], num_groups=GROUPS, baseline="leave_one_out"
    ),
    "ema_baseline": lambda i: objectives.group_relative(
        i["rows"], i["ids"], i["row_mask"], num_groups=GROUPS, baseline="ema", ema=i["x"][0, 0]
    ),
    "clipped_surrogate": lambda i: objectives.clipped_surrogate(
        i["x"], i["rows"], i["mask"], denominator=i["count"], **CLIP
    ),
    "token_surrogate": lambda i: objectives.token_surrogate(
        i["x"], i["rows"], i["mask"], aggregation="token_mean", denominator=i["count"], **CLIP
    ),
    "sequence_surrogate": lambda i: objectives.token_surrogate(
        i["x"], i["rows"], i["mask"], aggregation="sequence_mean", ratio="sequence",
        denominator=i["count"], **CLIP,
    ),
    "reinforce_loss": lambda i: objectives.reinforce_loss(
        i["x"], i["rows"], i["mask"], denominator=i["count"]
    ),
    "log_ratios": lambda i: objectives.log_ratios(
        i["x"], i["y"], i["mask"], (0, 1, 1), num_components=2
    ),
    "bernoulli_kl": lambda i: objectives.bernoulli_kl(i["x"], i["y"], i["mask"]),
    "categorical_kl": lambda i: objectives.categorical_kl(i["x"], i["y"], i["mask"]),
    "kl_loss": lambda i: objectives.kl_loss(
        i["x"], i["y"], i["mask"], aggregation="token_mean", denominator=i["count"]
    ),
    "combine_parts": lambda i: objectives.combine_parts(
        {"a": i["rows"], "b": i["x"][:, 0]}, {"a": 1.0, "b": 0.5}, i["row_mask"]
    ),
    "grade_reward": lambda i: objectives.grade_reward(
        i["row_mask"], i["rows"], i["x"], i["mask"], i["rows"], i["row_mask"]
    ),
    "generalized_advantages": lambda i: objectives.generalized_advantages(
        i["rows"], i["x"][:, 0], i["x"][0, 0], i["row_mask"], discount=0.9, lambda_=0.8
    ),
}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_traced_once_and_equal_to_eager(name):
    function = OBJECTIVES[name]
    compiled = jax.jit(chex.assert_max_traces(function, 1))
    for seed in range(3):
        got = compiled(inputs(seed))
        chex.assert_trees_all_close(got, function(inputs(seed)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_gradients_are_finite_and_zero_where_masked(name):
    def total(x, i):
        first = jax.tree.leaves(OBJECTIVES[name](i | {"x": x}))[0]
        return jnp.sum(first)

    i = inputs(7)
    poisoned = jnp.where(i["mask"], i["x"], jnp.nan)
    whole = ("combine_parts", "ema_baseline", "generalized_advantages")
    if name in whole:
        poisoned = i["x"]  # x does not stand under this mask there
    slope = np.asarray(jax.grad(functools.partial(total, i=i))(poisoned))
    assert np.isfinite(slope).all()
    assert name == "combine_parts" or (slope[~np.asarray(i["mask"])] == 0).all()


def test_public_names_are_sorted_and_complete():
    assert objectives.__all__ == sorted(objectives.__all__)
    assert all(hasattr(objectives, name) for name in objectives.__all__)
