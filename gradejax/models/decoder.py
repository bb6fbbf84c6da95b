"""The decoder of every family: embedding, blocks, norm, head.

The stack can be run in parts (``embed``, ``blocks``, ``final_norm``, ``logits``), because the
query encoder caches the state below its trainable layers and because scoring must not hold
[B, T, V].
"""

from collections.abc import Sequence

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.models import cache as cache_lib
from gradejax.models.config import DecoderConfig
from gradejax.models.layers import Block, RMSNorm, rope_tables

SHARED_SEGMENT = -1  # of packed rows: seen by every segment, such as a common system prompt


@flax.struct.dataclass
class Output:
    """logits [B, T, V] (None if not asked for), hidden [B, T, E] after the final norm, cache."""

    logits: jax.Array | None
    hidden: jax.Array
    cache: cache_lib.KVCache | None


def token_positions(mask):
    """Position of each token from its row's mask, [B, T] int32; pads get 0 (fault B01)."""
    return jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=1) - 1, 0)


def causal_mask(
    query_positions, key_positions, key_real, *, window=None, query_segments=None,
    key_segments=None,
):  # fmt: skip
    """Which key slots each query may see, [B, T, S] bool.

    Windows count positions, not slots, so padding does not eat into them (T11).

    Args:
      query_positions: [B, T] int32.
      key_positions: [B, S] int32.
      key_real: [B, S] bool.
      window: keys a query may see, itself included; None sees all.
      query_segments: [B, T] int32 with ``key_segments`` [B, S]: packed rows see their own segment
        and SHARED_SEGMENT only.
      key_segments: see ``query_segments``.
    """
    gap = query_positions[:, :, None] - key_positions[:, None, :]
    mask = (gap >= 0) & key_real[:, None, :]
    if window is not None:
        mask &= gap < window
    if query_segments is not None:
        same = query_segments[:, :, None] == key_segments[:, None, :]
        mask &= same | (key_segments == SHARED_SEGMENT)[:, None, :]
    return mask


class Decoder(nn.Module):
    """A causal language model; see ``DecoderConfig`` for what varies between families."""

    config: DecoderConfig
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        c = self.config
        self.embedding = nn.Embed(c.vocab_size, c.width, dtype=self.dtype,
                                  embedding_init=nn.initializers.normal(0.02))  # fmt: skip
        self.layers = [Block(c, name=f"layers_{i}") for i in range(c.num_layers)]
        self.norm = RMSNorm(c.norm_eps)
        if not c.tied:
            self.head = nn.Dense(c.vocab_size, use_bias=False, dtype=self.dtype)

    def embed(self, tokens):
        """[B, T] int32 → [B, T, E]."""
        return self.embedding(tokens)

    def blocks(self, x, positions, mask, layers: Sequence[int] | None = None):
        """Run the given blocks (all by default) without a cache.

        Args:
          x: [B, T, E].
          positions: [B, T] int32.
          mask: [B, T, T] bool.
          layers: indices of blocks, in order.
        """
        tables = rope_tables(positions, self.config.rope, self.config.head_dim)
        for i in range(self.config.num_layers) if layers is None else layers:
            x, _ = self.layers[i](x, tables, mask)
        return x

    def final_norm(self, x):
        return self.norm(x)

    def logits(self, hidden):
        """Final-normed hidden [..., E] → logits [..., V]."""
        return self.embedding.attend(hidden) if self.config.tied else self.head(hidden)

    def hidden(self, tokens, mask, *, positions=None, segments=None):
        """Final-normed hidden states of whole rows, [B, T, E].

        Args:
          tokens: [B, T] int32.
          mask: [B, T] bool, real tokens; padding may stand on either side.
          positions: [B, T] int32; by default each row's own count of real tokens.
          segments: [B, T] int32 for packed rows: a token sees its own segment only.
        """
        positions = token_positions(mask) if positions is None else positions
        seen = causal_mask(positions, positions, mask, window=self.config.sliding_window,
                           query_segments=segments, key_segments=segments)  # fmt: skip
        return self.norm(self.blocks(self.embed(tokens), positions, seen))

    def __call__(self, tokens, mask=None, *, cache=None, positions=None, segments=None,
                 last_only=False):  # fmt: skip
        """Read tokens, whole or one stretch at a time.

        Args:
          tokens: [B, T] int32.
          mask: [B, T] bool, real tokens (all by default).
          cache: None, or the cache of what came before.
          positions: [B, T] int32; by default counted from the mask, after the cache's tokens.
          segments: packed rows, without a cache only.
          last_only: logits of the last column only, [B, 1, V].

        Returns:
          Output.
        """
        mask = jnp.ones(tokens.shape, bool) if mask is None else mask
        c = self.config
        if cache is None:
            hidden = self.hidden(tokens, mask, positions=positions, segments=segments)
        else:
            if segments is not None:
                raise ValueError("packed rows (segments) cannot be read through a cache")
            if positions is None:
                before = jnp.sum(cache.filled, axis=1, dtype=jnp.int32)
                positions = before[:, None] + token_positions(mask)
            # Slots of this stretch are marked before attention, so a token sees itself.
            after = cache_lib.advance(cache, cache.layers, positions, mask)
            seen = causal_mask(positions, after.positions, after.filled, window=c.sliding_window)
            tables = rope_tables(positions, c.rope, c.head_dim)
            x, layers = self.embed(tokens), []
            for block, old in zip(self.layers, cache.layers, strict=True):
                x, new = block(x, tables, seen, old, cache.slot)
                layers.append(new)
            hidden = self.norm(x)
            cache = after.replace(layers=tuple(layers))
        return Output(self.logits(hidden[:, -1:] if last_only else hidden), hidden, cache)
