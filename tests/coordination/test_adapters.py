"""Adapters: a map of its own width for each agent, missing agents inert."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination.adapters import Adapters

WIDTHS = (3, 7, 5)


def features(dtype=np.float64):
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(4, w)).astype(dtype) for w in WIDTHS)


def test_each_agent_has_its_own_affine_map(x64):
    module, available = Adapters(WIDTHS, d=6, dtype=jnp.float64), np.ones((4, 3), bool)
    params = module.init(jax.random.key(0), features(), available)
    out = module.apply(params, features(), available)
    assert out.shape == (4, 3, 6)
    for a, f in enumerate(features()):
        p = jax.tree.map(np.asarray, params["params"][f"agent_{a}"])
        np.testing.assert_allclose(out[:, a], f @ p["kernel"] + p["bias"], atol=1e-14)


def test_missing_features_are_inert_even_when_nan():
    available = np.ones((4, 3), bool)
    available[1, 2] = False
    dirty = features(np.float32)
    dirty[2][1] = np.nan
    module = Adapters(WIDTHS, d=6)
    params = module.init(jax.random.key(0), features(np.float32), available)
    # The bias must not leak either: it is part of what the missing agent would have said.
    params["params"]["agent_2"]["bias"] = jnp.ones(6)
    value, gradient = jax.value_and_grad(lambda p: module.apply(p, dirty, available).sum())(params)
    want, want_gradient = jax.value_and_grad(
        lambda p: module.apply(p, features(np.float32), available).sum()
    )(params)
    assert value == want and np.isfinite(value)
    jax.tree.map(np.testing.assert_array_equal, gradient, want_gradient)
    np.testing.assert_array_equal(module.apply(params, dirty, available)[1, 2], 0.0)


def test_half_precision_features_and_wrong_widths():
    module, available = Adapters(WIDTHS, d=6), np.ones((4, 3), bool)
    params = module.init(jax.random.key(0), features(np.float16), available)
    assert module.apply(params, features(np.float16), available).dtype == jnp.float32
    with pytest.raises(ValueError, match=r"\(3, 7, 5\).*\(5, 7, 3\)"):
        module.init(jax.random.key(0), features()[::-1], available)
