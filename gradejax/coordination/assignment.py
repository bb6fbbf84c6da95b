"""Which agents are asked: their scores, and the managers' scores made of them.

The set itself follows ``coordination.subset`` (or ``plackett_luce`` for a fixed size); the manager
of depth 1 follows ``coordination.categorical``.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination.managers import membership
from gradejax.ops import masked_mean

Array = jax.Array


class AssignmentGate(nn.Module):
    """s_a = ⟨W^A h, e_a⟩/√d + ⟨h_{m(a)}, e_a⟩/√d, GRADE (arXiv 2607.10836).

    Attributes:
      manager_of: A manager indices.
      d: width of h, of the managers' views and of the agents' embeddings e.
      embedding_std: e starts as N(0, embedding_std²) [choice]: at 1 the scores start with a spread
        of about one, so that a small learning rate can move them within a few hundred steps.
    """

    manager_of: tuple[int, ...]
    d: int = 64
    embedding_std: float = 1.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, h: Array, managers: Array) -> Array:
        """h [..., d], managers' views [..., M, d] → scores [..., A]."""
        embeddings = self.param(
            "agents",
            nn.initializers.normal(self.embedding_std),
            (len(self.manager_of), self.d),
            self.dtype,
        )
        query = nn.Dense(
            self.d, use_bias=False, dtype=self.dtype, param_dtype=self.dtype, name="query"
        )(h)
        views = jnp.take(managers, np.asarray(self.manager_of, np.int32), axis=-2)
        return jnp.einsum("...ad,ad->...a", query[..., None, :] + views, embeddings) / math.sqrt(
            self.d
        )


def manager_logits(
    scores: Array, available: Array, manager_of: tuple[int, ...], num_managers: int
) -> tuple[Array, Array]:
    """Scores of the managers at depth 1 [choice]: the mean score of their available agents.

    Args:
      scores: [..., A].
      available: bool [..., A], the same rank (axes of size 1 broadcast).

    Returns:
      logits [..., M] (0 for a manager with nobody available) and allowed, bool [..., M].
    """
    shape = jnp.broadcast_shapes(scores.shape, available.shape)
    pools = jnp.asarray(membership(manager_of, num_managers))
    pools = pools.reshape((1,) * (len(shape) - 1) + pools.shape)
    present = jnp.broadcast_to(available, shape)[..., None, :] & pools  # [..., M, A]
    scores = jnp.broadcast_to(jnp.broadcast_to(scores, shape)[..., None, :], present.shape)
    return masked_mean(scores, present, axis=-1), present.any(-1)
