"""Norms, products and activations of a decoder's blocks."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from gradejax.models.config import DecoderConfig
from gradejax.models.quantize import lookup, product


def activation_fn(name: str):
    """The function behind a Hugging Face ``hidden_act`` name (validated in the config)."""
    return {
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
        "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    }[name]


class RMSNorm(nn.Module):
    """x / rms(x) · w, the mean square in at least float32; gemma stores w - 1 (D06)."""

    eps: float
    plus_one: bool = False

    @nn.compact
    def __call__(self, x):
        start = nn.initializers.zeros if self.plus_one else nn.initializers.ones
        scale = self.param("scale", start, (x.shape[-1],))
        scale = scale.reshape((1,) * (x.ndim - 1) + (-1,))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        if self.plus_one:  # in float32: bfloat16 would round 1 + w
            return (wide * (1 + scale.astype(wide.dtype))).astype(x.dtype)
        return (scale * wide.astype(x.dtype)).astype(x.dtype)


def make_norm(config: DecoderConfig, name: str | None = None) -> nn.Module:
    """The family's norm over the width (or over a head)."""
    if config.norm == "layer":
        return nn.LayerNorm(epsilon=config.norm_eps, name=name)
    return RMSNorm(config.norm_eps, config.norm == "rms_plus_one", name=name)


class Linear(nn.Module):
    """x · kernel + bias, over the last ``axes`` axes of x; kernel [*out, *in], as files have it."""

    out: tuple[int, ...]
    bias: bool = False
    axes: int = 1

    @nn.compact
    def __call__(self, x, at: slice | None = None):
        """``at`` picks a part of the second output axis."""
        inputs = x.shape[-self.axes :]

        def start(key, shape):
            flat = (math.prod(inputs), math.prod(self.out))
            return nn.initializers.lecun_normal()(key, flat).T.reshape(shape)

        kernel = self.param("kernel", start, (*self.out, *inputs))
        bias = self.param("bias", nn.initializers.zeros, self.out) if self.bias else None
        if at is not None:
            kernel = kernel[:, at]
            bias = None if bias is None else bias[:, at]
        y = product(x, kernel, self.axes)
        if bias is not None:
            y = y + bias.astype(x.dtype).reshape((1,) * (x.ndim - self.axes) + bias.shape)
        return y


class Embedding(nn.Module):
    """Rows of a table [V, E]; the head as well where the two are tied."""

    rows: int
    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.embedding = self.param(
            "embedding", nn.initializers.normal(0.02), (self.rows, self.width)
        )

    def __call__(self, ids):
        return lookup(self.embedding, ids, self.dtype)

    def attend(self, x):
        return product(x, self.embedding)
