"""Keys and values of the tokens already read, handed in and handed out, never mutated.

Rows of a batch are right-aligned, so all of them write the same slot in a step and one
``dynamic_update_slice`` serves the batch; which slots hold real tokens, and their positions, is
said per row.
"""

import flax.struct
import jax
import jax.numpy as jnp

from gradejax.models.config import DecoderConfig


@flax.struct.dataclass
class KVCache:
    """Attributes:

    layers: per block, (keys, values), each [B, S, K, H].
    positions: [B, S] int32, position of the token in each slot.
    filled: [B, S] bool, slots that hold a real token.
    slot: int32 scalar, the next slot to write.
    """

    layers: tuple[tuple[jax.Array, jax.Array], ...]
    positions: jax.Array
    filled: jax.Array
    slot: jax.Array

    @property
    def length(self) -> int:
        return self.filled.shape[1]


def empty_cache(config: DecoderConfig, batch: int, length: int, dtype=jnp.float32) -> KVCache:
    """A cache of ``length`` slots with nothing in it.

    Writing past the end would silently overwrite the last slot (B08: ``dynamic_update_slice``
    clamps), so callers size it to prompt + new tokens; ``generate`` checks before it starts.
    """
    shape = (batch, length, config.num_kv_heads, config.head_dim)
    return KVCache(
        layers=tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
                     for _ in range(config.num_layers)),
        positions=jnp.zeros((batch, length), jnp.int32),
        filled=jnp.zeros((batch, length), bool),
        slot=jnp.zeros((), jnp.int32),
    )  # fmt: skip


def advance(cache: KVCache, layers, positions, real) -> KVCache:
    """The cache after T tokens at ``positions`` [B, T], real where ``real`` [B, T]."""
    put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(  # noqa: E731
        old, new, cache.slot, axis=1
    )
    return KVCache(
        layers=tuple(layers),
        positions=put(cache.positions, positions.astype(jnp.int32)),
        filled=put(cache.filled, real),
        slot=cache.slot + positions.shape[1],
    )
