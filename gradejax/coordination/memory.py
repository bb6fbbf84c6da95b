"""A memory of past questions, read before every gate.

GRADE (arXiv 2607.10836) ablates a memory without defining it; everything here is [choice]:
h = h₀ + W_o · attn(W_q h₀; keys, values), W_o = 0 at the start. A ring of slots; after a batch one
slot per valid question with a rollout of depth ≥ 1: key h₀, value the mean z̄ of those rollouts.
Never reward or gold. Slots carry the question's id, and a training read masks its own.
"""

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.ops import masked_log_softmax, masked_mean

Array = jax.Array

EMPTY = -1


@flax.struct.dataclass
class Memory:
    """The ring. Always full-sized: an empty memory is a ring whose slots are all EMPTY."""

    keys: Array  # [S, d]
    values: Array  # [S, d]
    ids: Array  # [S] int32 question id, or EMPTY
    count: Array  # [] int32, the next slot to write


def empty(num_slots: int, d: int, dtype: Any = jnp.float32) -> Memory:
    """A memory with nothing in it; ``num_slots`` ≥ 1."""
    if num_slots < 1:
        raise ValueError(f"num_slots must be at least 1; got {num_slots}")
    return Memory(
        keys=jnp.zeros((num_slots, d), dtype),
        values=jnp.zeros((num_slots, d), dtype),
        ids=jnp.full((num_slots,), EMPTY, jnp.int32),
        count=jnp.zeros((), jnp.int32),
    )


class MemoryRead(nn.Module):
    """h₀ [Q, d] → h [Q, d]. Nothing readable leaves h₀ as it is."""

    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, h0: Array, memory: Memory, own: Array | None = None) -> Array:
        """Reads.

        Args:
          h0: [Q, d].
          memory: slots; no gradient goes into them.
          own: int [Q] ids of the questions, whose slots are hidden from themselves (training); None
            lets a question read its own slot (evaluation).
        """
        kwargs = {"use_bias": False, "dtype": self.dtype, "param_dtype": self.dtype}
        query = nn.Dense(self.d, name="query", **kwargs)(h0)
        keys, values = jax.lax.stop_gradient((memory.keys, memory.values))
        scores = jnp.einsum("qd,sd->qs", query, keys.astype(self.dtype)) / math.sqrt(self.d)
        readable = jnp.broadcast_to((memory.ids != EMPTY)[None, :], scores.shape)
        if own is not None:
            readable = readable & (memory.ids[None, :] != own[:, None])
        weights = jnp.exp(masked_log_softmax(scores, readable))
        read = jnp.einsum("qs,sd->qd", weights, values.astype(self.dtype))
        out = nn.Dense(self.d, kernel_init=nn.initializers.zeros, name="out", **kwargs)(read)
        return h0 + out


def rollout_values(pooled: Array, depth: Array) -> tuple[Array, Array]:
    """What a question writes: the mean z̄ of its rollouts with depth ≥ 1.

    Args:
      pooled: [Q, G, d] z̄.
      depth: int [Q, G].

    Returns:
      values [Q, d] without gradient, and written bool [Q]: it has such a rollout.
    """
    deep = depth >= 1
    return jax.lax.stop_gradient(masked_mean(pooled, deep, axis=1)), deep.any(-1)


def slots(count: Array, valid: Array, num_slots: int) -> Array:
    """Where each row goes: int32 [Q], ``num_slots`` (nowhere) for rows that write nothing.

    Args:
      count: [] the next slot to write.
      valid: bool [Q], the True ones first.
      num_slots: of more valid rows than this, only the last are placed: two writes to one slot of a
        scatter have no defined winner.
    """
    place = jnp.arange(valid.shape[0], dtype=jnp.int32)
    kept = valid & (place >= valid.sum() - num_slots)
    return jnp.where(kept, (count + place) % num_slots, num_slots)


def write(memory: Memory, keys: Array, values: Array, ids: Array, valid: Array) -> Memory:
    """Writes the valid rows in the order of their ids, over the oldest slots.

    The order does not depend on how rows were arranged or spread over devices; gather them first.

    Args:
      memory: as it is.
      keys: [Q, d] h₀.
      values: [Q, d].
      ids: int [Q] global row ids, distinct among valid rows.
      valid: bool [Q]; other rows write nothing.

    Returns:
      The new memory, same shapes. Of more valid rows than slots the last ones by id remain.
    """
    num_slots = memory.ids.shape[0]
    # Valid rows first, by id; among invalid ones the order is of no account.
    order = jnp.lexsort((ids, ~valid))
    keys, values, ids, valid = keys[order], values[order], ids[order], valid[order]
    number = valid.sum().astype(jnp.int32)
    slot = slots(memory.count, valid, num_slots)

    def put(old, new):
        new = jax.lax.stop_gradient(new).astype(old.dtype)
        return old.at[slot].set(new, mode="drop")

    return Memory(
        keys=put(memory.keys, keys),
        values=put(memory.values, values),
        ids=put(memory.ids, ids),
        count=(memory.count + number) % num_slots,
    )
