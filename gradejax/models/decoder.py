"""The decoder of every family: embedding, blocks, norm, head.

The stack can be run in parts (``embed``, ``blocks``, ``final_norm``, ``logits``), because the
query encoder caches the state below its trainable layers and because scoring must not hold
[B, T, V]. It is unrolled over layers: a scan is slower on CPU.
"""

from collections.abc import Sequence

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.models import cache as cache_lib
from gradejax.models.attention import SHARED_SEGMENT, causal_mask, token_positions
from gradejax.models.block import Adapters, Block
from gradejax.models.cache import KVCache, Part
from gradejax.models.config import DecoderConfig
from gradejax.models.layers import Embedding, Linear, make_norm
from gradejax.models.lora import Lora
from gradejax.models.lora_check import check_fits
from gradejax.models.ragged import ragged
from gradejax.models.rotary import rope_tables

__all__ = ["SHARED_SEGMENT", "Decoder", "Output", "causal_mask", "token_positions"]


@flax.struct.dataclass
class Output:
    """logits [B, T, V] (None if not asked for), hidden [B, T, E] after the final norm, cache."""

    logits: jax.Array | None
    hidden: jax.Array
    cache: KVCache | None


def row_lengths(positions, real, segments=None):
    """Tokens of each row so far, [B] int32; of each token's segment, [B, T], in packed rows."""
    ends = jnp.where(real, positions + 1, 0)
    if segments is None:
        return jnp.max(ends, axis=1)
    same = segments[:, :, None] == segments[:, None, :]
    return jnp.max(jnp.where(same, ends[:, None, :], 0), axis=2)


def views(config: DecoderConfig, layers: Sequence[int], positions, real, *, segments=None,
          lengths=None, parts: Sequence[Part] = (), cache: KVCache | None = None):  # fmt: skip
    """What queries at ``positions`` [B, T] see and how they turn, by layer: [(tables, masks)].

    Layers of the same window share their masks and layers of the same rope their tables.

    Args:
      config: the decoder's shape.
      layers: indices of blocks.
      positions: [B, T] int32.
      real: [B, T] bool.
      segments: [B, T] int32 of packed rows.
      lengths: see ``Decoder.hidden``.
      parts: read before the row's own tokens.
      cache: None, or the cache with these tokens already in its books.
    """
    if lengths is None:
        lengths = row_lengths(positions, real, segments)
    own = (positions, real) if cache is None else (cache.positions, cache.filled)
    tables, masks = {None: None}, {}
    for rope in {config.rope_of(i) for i in layers} - {None}:
        tables[rope] = rope_tables(positions, rope, config.head_dim, lengths)
    for window in {config.window(i) for i in layers}:
        masks[window] = (
            *(causal_mask(positions, p.positions, p.real, window=window) for p in parts),
            causal_mask(positions, *own, window=window, segments=segments, key_segments=segments),
        )
    return [(tables[config.rope_of(i)], masks[config.window(i)]) for i in layers]


class Decoder(nn.Module):
    """A causal language model; see ``DecoderConfig`` for what varies between families.

    Attributes:
      config: its shape.
      dtype: of states and products.
      remat: whether the backward pass computes each block again instead of keeping its insides;
        "products" keeps what the weights' products give and computes again only what lies between
        (attention, norms, activations), which costs a few percent.
    """

    config: DecoderConfig
    dtype: jnp.dtype = jnp.float32
    remat: bool | str = False

    def setup(self):
        c = self.config
        embed = lambda rows: Embedding(rows, c.width, self.dtype)  # noqa: E731
        self.embedding = embed(c.vocab_size)
        if c.learned_positions:
            self.positions = embed(c.max_positions)
        policies = {True: None,
                    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
        if self.remat and self.remat not in policies:
            raise ValueError(f"unknown remat {self.remat!r}; choose from False, True, 'products'")
        block = nn.remat(Block, policy=policies[self.remat]) if self.remat else Block
        self.layers = [block(c, name=f"layers_{i}") for i in range(c.num_layers)]
        self.norm = make_norm(c)
        if not c.tied:
            self.head = Linear((c.vocab_size,))

    def embed(self, tokens):
        """[B, T] int32 → [B, T, E]."""
        x = self.embedding(tokens)
        scale = self.config.embed_scale
        return x if scale is None else x * jnp.asarray(scale, x.dtype)

    def final_norm(self, x):
        return self.norm(x)

    def logits(self, hidden):
        """Final-normed hidden [..., E] → logits [..., V]."""
        hidden = hidden.astype(self.dtype)
        out = self.embedding.attend(hidden) if self.config.tied else self.head(hidden)
        cap = self.config.final_softcap
        if cap is None:
            return out
        wide = out.astype(jnp.promote_types(out.dtype, jnp.float32))
        return (cap * jnp.tanh(wide / cap)).astype(out.dtype)

    def _run(self, x, positions, real, *, layers=None, segments=None, lengths=None, parts=(),
             cache=None, lora=None, packing=None):  # fmt: skip
        """x through blocks; returns (x, own (keys, values) of each block run)."""
        layers = range(self.config.num_layers) if layers is None else layers
        if lora is not None:
            check_fits(lora, self.config)
        if self.config.learned_positions and next(iter(layers), 0) == 0:
            x = x + self.positions(positions)
        if packing is not None:
            x = packing.pack(x)
            if lora is not None:
                lora = lora.replace(weights=lora.weights[packing.row])
        seen = views(self.config, layers, positions, real, segments=segments, lengths=lengths,
                     parts=parts, cache=cache)  # fmt: skip
        slot = None if cache is None else cache.slot - positions.shape[1]
        kept = []
        for i, (tables, masks) in zip(layers, seen, strict=True):
            adapters = None
            if lora is not None and (entries := lora.entry(i)):
                adapters = Adapters(entries, lora.weights, lora.scale)
            x, own = self.layers[i](
                x, tables, masks, tuple(p.layers[i] for p in parts),
                None if cache is None else cache.own[i], slot, adapters, None, packing,
            )  # fmt: skip
            kept.append(own)
        return x if packing is None else packing.unpack(x), tuple(kept)

    def blocks(self, x, positions, real, layers: Sequence[int] | None = None, *, segments=None,
               lora: Lora | None = None, parts: Sequence[Part] = (), lengths=None):  # fmt: skip
        """Run the given blocks (all by default) without a cache.

        Args:
          x: [B, T, E]; what ``embed`` gives when the first block is among ``layers``.
          positions: [B, T] int32.
          real: [B, T] bool.
          layers: indices of blocks, in order.
          segments, lora, parts, lengths: see ``hidden``.
        """
        return self._run(x, positions, real, layers=layers, segments=segments, lora=lora,
                         parts=parts, lengths=lengths)[0]  # fmt: skip

    def _inputs(self, tokens, embeds, mask, positions, parts, cache=None):
        """(x, mask, positions), the defaults filled in."""
        if (tokens is None) == (embeds is None):
            raise ValueError("give either tokens or embeds, not both and not neither")
        x = self.embed(tokens) if embeds is None else embeds.astype(self.dtype)
        mask = jnp.ones(x.shape[:2], bool) if mask is None else mask.astype(bool)
        if positions is None:
            before = cache_lib.tokens_before(parts, x.shape[0])
            if cache is not None:
                before = before + jnp.sum(cache.filled, axis=1, dtype=jnp.int32)
            positions = before[:, None] + token_positions(mask)
        return x, mask, positions

    def hidden(self, tokens=None, mask=None, *, embeds=None, positions=None, segments=None,
               parts: Sequence[Part] = (), lora: Lora | None = None, layer: int | None = None,
               lengths=None):  # fmt: skip
        """Hidden states of whole rows, [B, T, E].

        Args:
          tokens: [B, T] int32, or None with ``embeds``.
          mask: [B, T] bool, real tokens (all by default); padding may stand on either side.
          embeds: [B, T, E] in place of tokens, as ``embed`` gives them.
          positions: [B, T] int32; by default each row's own count of real tokens, after the parts'.
          segments: [B, T] int32 for packed rows: a token sees its own segment only.
          parts: what stands before the rows and is shared by them (``prefill`` makes it).
          lora: adapters.
          layer: which states, counted as transformers does: 0 what the first block reads, i what
            block i - 1 gives, num_layers (and None) the last after the final norm; negative from
            the end. Blocks above are not run.
          lengths: [B] int32, the tokens a row will have in all, for rotary scalings that depend on
            it (``Rope.by_length``); by default what it has so far, as in transformers.
        """
        depth = self.config.num_layers
        if layer is not None and not -depth - 1 <= layer <= depth:
            raise ValueError(f"layer must lie in 0 to {depth} or -{depth + 1} to -1, got {layer}")
        layer = depth if layer is None else layer % (depth + 1)
        x, mask, positions = self._inputs(tokens, embeds, mask, positions, parts)
        x = self.blocks(x, positions, mask, range(layer), segments=segments, lora=lora,
                        parts=parts, lengths=lengths)  # fmt: skip
        return self.norm(x) if layer == depth else x

    def prefill(self, tokens=None, mask=None, *, embeds=None, positions=None,
                parts: Sequence[Part] = (), lora: Lora | None = None, lengths=None,
                count: int | None = None):  # fmt: skip
        """Read rows that others will share; arguments as in ``hidden``.

        With ``count``, at least the real tokens of all rows together, products read so many tokens
        side by side and no padding (``models.ragged``).

        Returns:
          (final-normed states [P, T, E], the Part that these tokens make). Gradients flow through
          both, so scoring can run a group's prompt once.
        """
        x, mask, positions = self._inputs(tokens, embeds, mask, positions, parts)
        packing = None if count is None else ragged(mask, count)
        x, own = self._run(x, positions, mask, parts=parts, lora=lora, lengths=lengths,
                           packing=packing)  # fmt: skip
        return self.norm(x), Part(own, positions, mask)

    def __call__(self, tokens=None, mask=None, *, embeds=None, cache: KVCache | None = None,
                 positions=None, segments=None, lora: Lora | None = None, lengths=None,
                 last_only=False):  # fmt: skip
        """Read tokens, whole or one stretch at a time.

        Args:
          tokens: [B, T] int32, or None with ``embeds``.
          mask: [B, T] bool, real tokens (all by default).
          embeds: [B, T, E] in place of tokens.
          cache: None, or the cache of what came before, shared parts included.
          positions: [B, T] int32; by default counted from the mask, after the cache's tokens.
          segments: packed rows, without a cache only.
          lora: adapters.
          lengths: see ``hidden``. Keys in the cache keep the turn they got when they were read, so
            a row that crosses the original context mid-way equals a whole reading only if its
            final length was given from the start.
          last_only: logits of the last column only, [B, 1, V].

        Returns:
          Output.
        """
        if cache is None:
            hidden = self.hidden(tokens, mask, embeds=embeds, positions=positions,
                                 segments=segments, lora=lora, lengths=lengths)  # fmt: skip
        else:
            if segments is not None:
                raise ValueError("packed rows (segments) cannot be read through a cache")
            x, mask, positions = self._inputs(tokens, embeds, mask, positions, cache.parts, cache)
            # Slots of this stretch are marked before attention, so a token sees itself.
            cache = cache_lib.advance(cache, positions, mask)
            x, own = self._run(x, positions, mask, parts=cache.parts, cache=cache, lora=lora,
                               lengths=lengths)  # fmt: skip
            hidden, cache = self.norm(x), cache.replace(own=own)
        return Output(self.logits(hidden[:, -1:] if last_only else hidden), hidden, cache)
