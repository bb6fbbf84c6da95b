"""Managers: each owns a sub-pool of the agents and sees the question through an MLP of its own.

GRADE (arXiv 2607.10836): h_m = MLP_m(h), two layers, GELU, over disjoint sub-pools.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def membership(manager_of: tuple[int, ...], num_managers: int) -> np.ndarray:
    """The sub-pools as masks.

    Args:
      manager_of: for each of the A agents the index of its manager.
      num_managers: M.

    Returns:
      bool [M, A] (host array); every column has exactly one True.
    """
    bad = [m for m in manager_of if not 0 <= m < num_managers]
    if bad:
        raise ValueError(
            f"manager_of must hold indices in [0, {num_managers}); got {bad} in {manager_of}"
        )
    return np.arange(num_managers)[:, None] == np.asarray(manager_of, int)[None, :]


class TwoLayerMLP(nn.Module):
    """Dense, GELU, Dense: the shape of every gate of this package.

    The exact (erf) GELU, as the paper's PyTorch default. The hidden width is d [choice].
    """

    out: int
    hidden: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Dense(self.hidden, dtype=self.dtype, param_dtype=self.dtype, name="hidden")(x)
        x = nn.gelu(x, approximate=False)
        return nn.Dense(self.out, dtype=self.dtype, param_dtype=self.dtype, name="out")(x)


class Managers(nn.Module):
    """h [..., d] → the managers' views h_m [..., M, d]."""

    num_managers: int
    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, h: Array) -> Array:
        views = [
            TwoLayerMLP(self.d, self.d, self.dtype, name=f"manager_{m}")(h)
            for m in range(self.num_managers)
        ]
        return jnp.stack(views, axis=-2)
