"""Which of the asked agents' messages are kept.

GRADE (arXiv 2607.10836): v_a = σ(MLP([h; m̃_a])), kept at inference where v_a ≥ τ^P = .35. In
training K ~ Bernoulli(v) over S, conditioned on K ≠ ∅ (``coordination.subset`` with S as the
allowed set): a lone member is kept by force and took no part. At inference an empty K becomes the
best v alone. The threshold .35 is not the mode of the sampled policy.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gradejax.coordination import subset
from gradejax.coordination.managers import TwoLayerMLP

Array = jax.Array

THRESHOLD = 0.35


class PruneGate(nn.Module):
    """h [..., d] and messages m̃ [..., N, d] → logits [..., N] of v."""

    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, h: Array, messages: Array) -> Array:
        shape = (*messages.shape[:-1], h.shape[-1])
        pair = jnp.concatenate([jnp.broadcast_to(h[..., None, :], shape), messages], axis=-1)
        return TwoLayerMLP(1, self.d, self.dtype, name="mlp")(pair)[..., 0]


def sample(key, logits, members, shape: tuple[int, ...] | None = None) -> Array:
    """Draws K ⊆ S, bool [..., N]; the key is consumed."""
    return subset.sample(key, logits, members, shape)


def log_prob(kept, logits, members) -> Array:
    """log π(K | S) [...]; 0 where S has fewer than two members."""
    return subset.log_prob(kept, logits, members)


def decisions(kept, logits, members) -> subset.Decisions:
    """Sequential conditionals [..., N] of K, forced ones flagged."""
    return subset.decisions(kept, logits, members)


def kl(p_logits, r_logits, members) -> Array:
    """KL(p‖r) of K given S as recorded [...]; the gradient through the chance of S is left out."""
    return subset.kl(p_logits, r_logits, members)


def threshold(logits, members, tau: float = THRESHOLD) -> Array:
    """K at inference: {a ∈ S: v_a ≥ τ}, or the best v alone. bool [..., N]."""
    return subset.threshold(logits, members, tau)


def takes_part(members) -> Array:
    """bool [..., N] → [...]: S has at least two members, so that something was decided."""
    return subset.takes_part(members)
