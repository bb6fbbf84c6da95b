"""RMSNorm, rotary positions, attention and the gated MLP of a decoder block.

Letters: B batch, T query tokens, S key slots, N query heads, K key/value heads, R = N / K,
H head_dim, E width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gradejax.models.config import DecoderConfig, Rope


def activation_fn(name: str):
    """The function behind a Hugging Face ``hidden_act`` name (validated in the config)."""
    return {
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    }[name]


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Angular speed of each rotary pair, [H/2] float64, after the config's scaling."""
    speed = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        return speed / rope.factor
    if rope.kind == "llama3":
        length = 2 * np.pi / speed
        old = rope.original_max_positions
        low, high = old / rope.low_freq_factor, old / rope.high_freq_factor
        blend = (old / length - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        mixed = (1 - blend) * speed / rope.factor + blend * speed
        return np.where(length > low, speed / rope.factor, np.where(length < high, speed, mixed))
    return speed


def rope_tables(positions, rope: Rope, head_dim: int):
    """cos and sin of every position's angles, [B, T, 1, H] float32 (half-split layout, D03).

    Angles are taken in float32 whatever the model's dtype: bfloat16 rounds 257 to 256.
    """
    speed = jnp.asarray(inverse_frequencies(rope, head_dim), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * speed[None, None, :]
    angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x, tables):
    """Turn [B, T, N, H] by its positions; pairs are (i, i + H/2) as in Hugging Face weights."""
    cos, sin = tables
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return (x.astype(jnp.float32) * cos + turned * sin).astype(x.dtype)


class RMSNorm(nn.Module):
    """x / rms(x) · w, the mean square in at least float32."""

    eps: float

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return scale.reshape((1,) * (x.ndim - 1) + (-1,)) * wide.astype(x.dtype)


def attend(q, k, v, mask):
    """Grouped-query attention with a boolean mask; a query that may see nothing gets 0 (B10).

    Args:
      q: [B, T, N, H].
      k: [B, S, K, H].
      v: [B, S, K, H].
      mask: [B, T, S] bool, True where the query may look.

    Returns:
      [B, T, N, H], q's dtype; scores and softmax in at least float32.
    """
    batch, length, heads, head_dim = q.shape
    groups = k.shape[2]
    # Query head n reads key head n // R: heads are split, not tiled (T20).
    q = q.reshape(batch, length, groups, heads // groups, head_dim)
    kind = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("btkrh,bskh->bkrts", q, k, preferred_element_type=kind)
    scores = scores * head_dim**-0.5
    seen = mask[:, None, None, :, :]
    scores = jnp.where(seen, scores, jnp.finfo(kind).min)
    weights = jax.nn.softmax(scores, axis=-1)
    weights = jnp.where(seen, weights, 0).astype(v.dtype)
    out = jnp.einsum("bkrts,bskh->btkrh", weights, v)
    return out.reshape(batch, length, heads, head_dim)


def pick(x, asked):
    """x [B, T, ...] at (row [P], place [P]) → [P, 1, ...]."""
    return x[asked[0], asked[1]][:, None]


class Attention(nn.Module):
    """Self-attention of one block; writes its keys and values into a cache when given one."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, tables, mask, cache=None, slot=None, asked=None):
        """Attend.

        Args:
          x: [B, T, E].
          tables: cos and sin of the positions of x.
          mask: [B, T, S] bool; S = T without a cache, the cache's length with one.
          cache: None, or keys and values [B, S, K, H] of this layer.
          slot: int32 scalar, first cache slot that x's T tokens take.
          asked: None, or (row [P], place [P]): only these places' outputs are wanted; the mask is
            then [P, 1, S].

        Returns:
          ([B, T, E], or [P, 1, E] when asked for places; the updated (keys, values) or None).
        """
        c = self.config
        dense = lambda heads, name, bias: nn.DenseGeneral(  # noqa: E731
            (heads, c.head_dim), use_bias=bias, name=name, dtype=x.dtype
        )
        queries = (x, tables) if asked is None else jax.tree.map(
            lambda a: pick(a, asked), (x, tables))  # fmt: skip
        q = rotate(dense(c.num_heads, "q", c.qkv_bias)(queries[0]), queries[1])
        k = rotate(dense(c.num_kv_heads, "k", c.qkv_bias)(x), tables)
        v = dense(c.num_kv_heads, "v", c.qkv_bias)(x)
        if cache is not None:
            write = lambda old, new: jax.lax.dynamic_update_slice_in_dim(  # noqa: E731
                old, new.astype(old.dtype), slot, axis=1
            )
            k, v = cache = (write(cache[0], k), write(cache[1], v))
        if asked is not None:
            k, v = k[asked[0]], v[asked[0]]
        out = attend(q, k, v, mask)
        out = nn.DenseGeneral(
            c.width, axis=(-2, -1), use_bias=c.out_bias, name="o", dtype=x.dtype
        )(out)
        return out, cache


class GatedMLP(nn.Module):
    """down(act(gate(x)) · up(x))."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x):
        c = self.config
        dense = lambda width, name: nn.Dense(  # noqa: E731
            width, use_bias=c.mlp_bias, name=name, dtype=x.dtype
        )
        hidden = activation_fn(c.activation)(dense(c.mlp_width, "gate")(x))
        return dense(c.width, "down")(hidden * dense(c.mlp_width, "up")(x))


class Block(nn.Module):
    """Pre-norm transformer block."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, tables, mask, cache=None, slot=None, asked=None):
        """See ``Attention``."""
        normed = RMSNorm(self.config.norm_eps, name="attn_norm")(x)
        out, cache = Attention(self.config, name="attn")(normed, tables, mask, cache, slot, asked)
        x = (x if asked is None else pick(x, asked)) + out
        normed = RMSNorm(self.config.norm_eps, name="mlp_norm")(x)
        return x + GatedMLP(self.config, name="mlp")(normed), cache
