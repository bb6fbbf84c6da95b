"""Φ_a: from each agent's own hidden width to the shared message width d."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Array = jax.Array


class Adapters(nn.Module):
    """Messages m_a = Φ_a f_a, GRADE (arXiv 2607.10836); one affine map an agent, widths differ.

    Attributes:
      widths: D_a of each of the N agents (M0 last).
      d: width of the messages.
    """

    widths: tuple[int, ...]
    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: tuple[Array, ...], available: Array) -> Array:
        """Maps the features.

        Args:
          features: N arrays [..., D_a]; half precision is converted to ``dtype``.
          available: bool [..., N]; rows of a missing agent are read as zeros, so that whatever
            stands there (NaN included) is inert, and give a zero message.

        Returns:
          [..., N, d].
        """
        got = tuple(f.shape[-1] for f in features)
        if got != tuple(self.widths):
            raise ValueError(f"features must have the widths {tuple(self.widths)}; got {got}")
        messages = []
        for a, feature in enumerate(features):
            present = available[..., a, None]
            feature = jnp.where(present, feature.astype(self.dtype), 0.0)
            dense = nn.Dense(self.d, dtype=self.dtype, param_dtype=self.dtype, name=f"agent_{a}")
            messages.append(jnp.where(present, dense(feature), 0.0))
        return jnp.stack(messages, axis=-2)
