"""Managers: sub-pools and the two-layer MLPs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from gradejax.coordination.managers import Managers, membership


def test_membership_is_disjoint_and_complete():
    pools = membership((0, 0, 1, 1, 0), 2)
    np.testing.assert_array_equal(pools, [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]])
    with pytest.raises(ValueError, match=r"\[0, 2\).*2"):
        membership((0, 2), 2)


def test_each_manager_is_its_own_mlp(x64):
    h = np.random.default_rng(0).normal(size=(3, 5))
    module = Managers(num_managers=2, d=5, dtype=jnp.float64)
    params = module.init(jax.random.key(0), h)
    out = module.apply(params, h)
    assert out.shape == (3, 2, 5) and out.dtype == jnp.float64
    for m in range(2):
        mlp = jax.tree.map(np.asarray, params["params"][f"manager_{m}"])
        assert mlp["hidden"]["kernel"].dtype == jnp.float64
        x = h @ mlp["hidden"]["kernel"] + mlp["hidden"]["bias"]
        x = x * 0.5 * (1 + erf(x / np.sqrt(2)))  # exact GELU
        want = x @ mlp["out"]["kernel"] + mlp["out"]["bias"]
        np.testing.assert_allclose(out[:, m], want, atol=1e-14)
    assert np.abs(out[:, 0] - out[:, 1]).max() > 0.1
