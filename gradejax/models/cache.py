"""Keys and values of the tokens already read, handed in and handed out, never mutated.

What rows have in common stands in shared parts, which are read only; each row writes to slots of
its own. Rows of a batch are right-aligned, so all of them write the same slot in a step and one
``dynamic_update_slice`` serves the batch; which slots hold real tokens, and their positions, is
said per row. Keys are held as [B, K, H, S] and values as [B, K, S, H]: both products of a decode
step then run along contiguous memory.
"""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from gradejax.models.config import DecoderConfig

Layers = tuple[tuple[Any, Any], ...]  # (keys [B, K, H, S], values [B, K, S, H]) of each block


@flax.struct.dataclass
class Part:
    """What B / P rows each have in common, such as their prompt; see ``models.attention``.

    layers: per block, (keys [P, K, H, S], values [P, K, S, H]); positions [P, S] int32; real
    [P, S] bool.
    """

    layers: Layers
    positions: jax.Array
    real: jax.Array


@flax.struct.dataclass
class KVCache:
    """Attributes:

    own: per block, (keys [B, K, H, S], values [B, K, S, H]).
    positions: [B, S] int32, position of the token in each slot.
    filled: [B, S] bool, slots that hold a real token.
    slot: int32 scalar, the next slot to write.
    parts: what stands before every row's own slots, shared and read only.
    """

    own: Layers
    positions: jax.Array
    filled: jax.Array
    slot: jax.Array
    parts: tuple[Part, ...] = ()

    @property
    def length(self) -> int:
        return self.filled.shape[1]


def empty_cache(config: DecoderConfig, batch: int, length: int, dtype=jnp.float32,
                parts: Sequence[Part] = ()) -> KVCache:  # fmt: skip
    """A cache of ``length`` own slots with nothing in them, behind ``parts``.

    Writing past the end would silently overwrite the last slot (B08: ``dynamic_update_slice``
    clamps), so callers size it to prompt + new tokens; ``generate`` checks before it starts.
    """
    heads, head_dim = config.num_kv_heads, config.head_dim
    zeros = lambda *shape: jnp.zeros((batch, heads, *shape), dtype)  # noqa: E731
    return KVCache(
        own=tuple((zeros(head_dim, length), zeros(length, head_dim))
                  for _ in range(config.num_layers)),
        positions=jnp.zeros((batch, length), jnp.int32),
        filled=jnp.zeros((batch, length), bool),
        slot=jnp.zeros((), jnp.int32),
        parts=tuple(parts),
    )  # fmt: skip


def as_parts(cache: KVCache) -> tuple[Part, ...]:
    """What a cache of P rows holds, to be shared by any multiple of P rows."""
    return (*cache.parts, Part(cache.own, cache.positions, cache.filled))


def tokens_before(parts: Sequence[Part], batch: int):
    """Real tokens in the parts that each of ``batch`` rows reads, [batch] int32."""
    total = jnp.zeros((batch,), jnp.int32)
    for part in parts:
        count = jnp.sum(part.real, axis=1, dtype=jnp.int32)
        total += jnp.repeat(count, batch // count.shape[0], total_repeat_length=batch)
    return total


def advance(cache: KVCache, positions, real) -> KVCache:
    """The cache's books after T tokens at ``positions`` [B, T], real where ``real`` [B, T]."""
    put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(  # noqa: E731
        old, new, cache.slot, axis=1
    )
    return cache.replace(
        positions=put(cache.positions, positions.astype(jnp.int32)),
        filled=put(cache.filled, real),
        slot=cache.slot + positions.shape[1],
    )


def write(own, k, v, slot):
    """A block's own (keys, values) with k [B, K, H, T] and v [B, K, T, H] put in at ``slot``."""
    keys, values = own
    put = jax.lax.dynamic_update_slice_in_dim
    return (put(keys, k.astype(keys.dtype), slot, axis=3),
            put(values, v.astype(values.dtype), slot, axis=2))  # fmt: skip
