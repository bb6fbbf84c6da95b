"""The block of a decoder: self-attention, the MLP, and the norms around them.

Letters: B batch, T query tokens, K key heads, R query heads a key head, N = K·R, H head_dim,
E width, F mlp width. Kernels are fused and grouped by key head, so one product serves q, k and v
and a share of the key heads is a share of every attention kernel.
"""

from typing import Any

import flax.linen as nn
import flax.struct

from gradejax.models import cache as cache_lib
from gradejax.models.attention import attend_masked
from gradejax.models.config import DecoderConfig
from gradejax.models.layers import Linear, activation_fn, make_norm
from gradejax.models.lora import lora_deltas
from gradejax.models.mixture import Mixture
from gradejax.models.rotary import rotate


@flax.struct.dataclass
class Adapters:
    """What adapts one block: {target: {"a", "b"}}, weights [B, n], scale [n]."""

    entries: Any
    weights: Any
    scale: Any

    def add(self, x, **outputs):
        """What products of x give, with what the adapters add to each: in the order given.

        Args:
          x: [B, T, in].
          outputs: target → [B, T, *out].
        """
        named = {t: self.entries[t] for t in outputs if t in self.entries}
        deltas = lora_deltas(x, named, self.weights, self.scale)
        return [y + deltas[t].reshape(y.shape) if t in deltas else y for t, y in outputs.items()]


def adapted(lora: Adapters | None, x, **outputs):
    """``Adapters.add``, where there are any."""
    return list(outputs.values()) if lora is None else lora.add(x, **outputs)


def pick(x, asked):
    """x [B, T, ...] at (row [P], place [P]) → [P, 1, ...]."""
    return x[asked[0], asked[1]][:, None]


class Attention(nn.Module):
    """Self-attention of one block; writes its keys and values into a cache when given one."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, tables, masks, parts=(), own=None, slot=None, lora=None, asked=None,
                 ragged=None):  # fmt: skip
        """Attend.

        Args:
          x: [B, T, E]; [N, 1, E] with ``ragged``.
          tables: cos and sin of the positions of x, or None without rotary positions.
          masks: one for each of ``parts`` and one for the row's own slots, [P, G, T, S] bool.
          parts: (keys, values) that rows share, see ``models.attention``.
          own: None, or this block's keys [B, K, H, S] and values [B, K, S, H] in the cache.
          slot: int32 scalar, first cache slot that x's T tokens take.
          lora: None, or the block's Adapters.
          asked: None, or (row [P], place [P]): only these places' outputs are wanted; the mask is
            then [P, 1, 1, T], and there are no parts, cache or adapters.
          ragged: None, or how the N tokens of x lie in rows (``Ragged``); the adapters' weights are
            then the tokens'.

        Returns:
          (as x, or [P, 1, E] when asked for places; own (keys, values) with x's written).
        """
        c = self.config
        heads, share, size = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        fused = Linear((heads, share + 2, size), c.qkv_bias, name="qkv")
        norms = [make_norm(c, n) for n in ("q_norm", "k_norm")] if c.qk_norm else None

        def turn(q, k, tables):
            if norms is not None:
                q, k = (None if y is None else norm(y) for norm, y in zip(norms, (q, k)))  # noqa: B905
            return [y if y is None or tables is None else rotate(y, tables) for y in (q, k)]

        if asked is None:
            y = fused(x)
            q, k, v = adapted(lora, x, q=y[..., :share, :], k=y[..., share : share + 1, :],
                              v=y[..., share + 1 :, :])  # fmt: skip
            if ragged is not None:
                q, k, v = (ragged.unpack(z) for z in (q, k, v))
            q, k = turn(q, k, tables)
            v = v[..., 0, :]
        else:
            kv = fused(x, slice(share, None))
            q = fused(pick(x, asked), slice(None, share))
            q, _ = turn(q, None, None if tables is None else [pick(t, asked) for t in tables])
            _, k = turn(None, kv[..., :1, :], tables)
            v = kv[..., 1, :]
        k, v = k[..., 0, :].transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        own = (k, v) if own is None else cache_lib.write(own, k, v, slot)
        read = own if asked is None else (own[0][asked[0]], own[1][asked[0]])
        sinks = None
        if c.sinks:
            sinks = self.param("sinks", nn.initializers.zeros, (heads, share))
        out = attend_masked(q, [*parts, read], masks, scale=c.attn_scale, softcap=c.attn_softcap,
                            sinks=sinks)  # fmt: skip
        out = out if ragged is None else ragged.pack(out)
        y = Linear((c.width,), c.out_bias, axes=3, name="o")(out)
        return *adapted(lora, out.reshape(*out.shape[:2], -1), o=y), own


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))) where the family has no gate."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, lora=None):
        """[B, T, E] → [B, T, E]; ``lora``: the block's Adapters or None."""
        c = self.config
        act = activation_fn(c.activation)
        if c.gated:
            y = Linear((2, c.mlp_width), c.mlp_bias, name="gate_up")(x)
            gate, up = adapted(lora, x, gate=y[:, :, 0], up=y[:, :, 1])
            hidden = act(gate) * up
        else:
            y = Linear((c.mlp_width,), c.mlp_bias, name="up")(x)
            hidden = act(*adapted(lora, x, up=y))
        y = Linear((c.width,), c.mlp_bias, name="down")(hidden)
        return adapted(lora, hidden, down=y)[0]


class Block(nn.Module):
    """Pre-norm transformer block; gemma 2 and 3 norm what the halves give as well."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, tables, masks, parts=(), own=None, slot=None, lora=None, asked=None,
                 ragged=None):  # fmt: skip
        """See ``Attention``."""
        c = self.config
        out, own = Attention(c, name="attn")(
            make_norm(c, "attn_norm")(x), tables, masks, parts, own, slot, lora, asked,
            ragged,
        )
        out = make_norm(c, "attn_post_norm")(out) if c.post_norms else out
        x = (x if asked is None else pick(x, asked)) + out
        mlp = Mixture if c.experts else MLP
        out = mlp(c, name="mlp")(make_norm(c, "mlp_norm")(x), lora)
        out = make_norm(c, "mlp_post_norm")(out) if c.post_norms else out
        return x + out, own
