"""BERT, the encoder of MiniLM: hidden states of whole texts, read in both directions.

Letters as in the decoder: B rows, T tokens, N heads, H head_dim, E width, F mlp width.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

ACTIVATIONS = ("gelu", "gelu_new", "relu")


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Everything that fixes an encoder's parameters and its arithmetic.

    Attributes:
      vocab_size: rows of the word embedding.
      width: E.
      num_layers: blocks.
      num_heads: N; E is a multiple of it.
      mlp_width: F.
      max_positions: rows of the position embedding: the longest text in tokens.
      type_vocab: rows of the segment embedding; texts here are all of segment 0.
      norm_eps: epsilon of LayerNorm.
      activation: one of ACTIVATIONS; "gelu" is the exact one.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    mlp_width: int
    max_positions: int
    type_vocab: int = 2
    norm_eps: float = 1e-12
    activation: str = "gelu"

    def __post_init__(self):
        if self.width % self.num_heads:
            raise ValueError(
                f"hidden_size={self.width} must be a multiple of "
                f"num_attention_heads={self.num_heads}"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"unsupported hidden_act {self.activation!r}; supported: {', '.join(ACTIVATIONS)}"
            )


def bert_config(raw: Mapping[str, Any]) -> BertConfig:
    """Read a Hugging Face config.

    Raises:
      ValueError: another model type, kind of positions or activation, or a missing key.
    """
    if raw.get("model_type") != "bert":
        raise ValueError(
            f"unsupported model_type {raw.get('model_type')!r} of a sentence encoder; supported: "
            "bert (decoders are read by load_checkpoint)"
        )
    positions = raw.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(f"unsupported position_embedding_type {positions!r}; supported: absolute")
    if raw.get("is_decoder", False):
        raise ValueError("a bert that is a decoder (is_decoder) is not supported")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
              "intermediate_size", "max_position_embeddings")  # fmt: skip
    if missing := [k for k in needed if k not in raw]:
        raise ValueError(f"config.json of a bert model lacks {', '.join(missing)}")
    vocab, width, layers, heads, mlp, longest = (int(raw[k]) for k in needed)
    return BertConfig(
        vocab_size=vocab, width=width, num_layers=layers, num_heads=heads, mlp_width=mlp,
        max_positions=longest, type_vocab=int(raw.get("type_vocab_size", 2)),
        norm_eps=float(raw.get("layer_norm_eps", 1e-12)),
        activation=raw.get("hidden_act", "gelu"),
    )  # fmt: skip


def _activation(name: str, x):
    if name == "relu":
        return jax.nn.relu(x)
    return jax.nn.gelu(x, approximate=name == "gelu_new")


class BertBlock(nn.Module):
    """Attention and MLP, each normed after its residual sum, as in the original."""

    config: BertConfig

    @nn.compact
    def __call__(self, x, mask):
        """x [B, T, E], mask [B, T] bool → [B, T, E]."""
        c = self.config
        heads, dim = c.num_heads, c.width // c.num_heads
        dense = lambda name, size: nn.Dense(size, name=name, dtype=x.dtype)  # noqa: E731
        norm = lambda name: nn.LayerNorm(c.norm_eps, name=name, dtype=x.dtype)  # noqa: E731
        parts = [dense(n, c.width)(x).reshape(*x.shape[:2], heads, dim) for n in "qkv"]
        seen = mask[:, None, None, :]  # a padded row sees nothing: softmax over pads, no NaN
        out = jax.nn.dot_product_attention(*parts, mask=seen)
        x = norm("attn_norm")(x + dense("o", c.width)(out.reshape(x.shape)))
        inner = _activation(c.activation, dense("up", c.mlp_width)(x))
        return norm("mlp_norm")(x + dense("down", c.width)(inner))


class Bert(nn.Module):
    """The encoder; its output has no pooler, which sentence embeddings do not use."""

    config: BertConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens, mask):
        """Read whole texts.

        Args:
          tokens: [B, T] int32, padded on the right; T at most ``max_positions``.
          mask: [B, T] bool, real tokens.

        Returns:
          hidden states [L + 1, B, T, E]: of the embeddings and after each block.
        """
        c = self.config
        if tokens.shape[1] > c.max_positions:
            raise ValueError(
                f"texts of {tokens.shape[1]} tokens; the encoder reads at most {c.max_positions}"
            )
        embed = lambda name, rows: nn.Embed(rows, c.width, name=name, dtype=self.dtype)  # noqa: E731
        words = embed("words", c.vocab_size)(tokens)
        places = embed("positions", c.max_positions)(jnp.arange(tokens.shape[1]))
        kinds = embed("kinds", c.type_vocab)(jnp.zeros((1,), jnp.int32))
        x = nn.LayerNorm(c.norm_eps, name="norm", dtype=self.dtype)(
            words + places[None] + kinds[None]
        )
        states = [x]
        for i in range(c.num_layers):
            x = BertBlock(c, name=f"layers_{i}")(x, mask)
            states.append(x)
        return jnp.stack(states)


def mean_pooled(hidden, mask, *, normalise: bool):
    """Mean over real tokens, as sentence-transformers pools.

    Args:
      hidden: [B, T, E].
      mask: [B, T] bool.
      normalise: divide by the Euclidean norm (at least 1e-12).

    Returns:
      [B, E] float32; rows without a real token are 0.
    """
    weight = mask.astype(jnp.float32)[:, :, None]
    count = jnp.maximum(weight.sum(1), 1e-9)
    mean = (hidden.astype(jnp.float32) * weight).sum(1) / count
    if not normalise:
        return mean
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)
