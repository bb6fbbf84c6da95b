"""Low-rank adapters of a frozen decoder, several of them in one batch (arXiv:2106.09685).

Letters: B rows, T tokens, n adapters, r rank.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp


@flax.struct.dataclass
class Lora:
    """n adapters and how much of each the rows of a batch want.

    tree: {"layers_3": {"q": {"a": [n, in, r], "b": [n, r, out]}}}; what is left out is not adapted.
    weights: [B, n]. scale: [n], alpha/r of each adapter.
    """

    tree: Mapping[str, Any]
    weights: Any
    scale: Any

    def entry(self, layer: int) -> Mapping[str, Any]:
        """What adapts this layer, by target; empty when nothing does."""
        return self.tree.get(f"layers_{layer}", {})


def lora_delta(x, entry, weights, scale):
    """What the adapters add to a product, [B, T, out].

    Args:
      x: [B, T, in], the product's input.
      entry: {"a": [n, in, r], "b": [n, r, out]}.
      weights: [B, n].
      scale: [n].
    """
    a, b = entry["a"].astype(x.dtype), entry["b"].astype(x.dtype)
    count, size, rank = a.shape
    inner = x @ a.transpose(1, 0, 2).reshape(size, count * rank)
    share = jnp.repeat(weights * scale[None, :], rank, axis=1).astype(x.dtype)
    return (inner * share[:, None, :]) @ b.reshape(count * rank, -1)
