"""Adapters and soft prefixes with something in them, for the tests of generation and scoring."""

import jax
import jax.numpy as jnp

from gradejax.models.lora import Lora


def adapters(config, weights, *, rank=3, seed=0):
    """n adapters of layer 0 (all targets) and of the last layer's q and down, none of them zero.

    Args:
      config: the decoder's.
      weights: [B, n].
      rank: of each.
      seed: of their numbers.
    """
    weights = jnp.asarray(weights, jnp.float32)
    n, e, f = weights.shape[1], config.width, config.mlp_width
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"q": (e, q), "k": (e, kv), "v": (e, kv), "o": (q, e), "gate": (e, f), "up": (e, f),
              "down": (f, e)}  # fmt: skip
    layers = {"layers_0": tuple(shapes), f"layers_{config.num_layers - 1}": ("q", "down")}
    tree, key = {}, jax.random.key(seed)
    for i, (layer, targets) in enumerate(layers.items()):
        tree[layer] = {}
        for j, target in enumerate(targets):
            into, out = shapes[target]
            a, b = jax.random.split(jax.random.fold_in(key, 10 * i + j))
            tree[layer][target] = {
                "a": jax.random.normal(a, (n, into, rank)) / into**0.5,
                "b": 0.5 * jax.random.normal(b, (n, rank, out)),
            }
    return Lora(tree, weights, jnp.linspace(0.5, 1.5, n))
