"""Mixtures of experts: each token goes through the k experts that its router scores highest.

Tokens are sorted by expert and multiplied in one ragged product; no token is ever dropped. Where
XLA has a kernel for it the work is that of k experts a token. On CPU it has none and multiplies
every token by all X experts, which is exact all the same.

Letters: B rows, T tokens, n = B·T, X experts, k experts a token, E width, F an expert's width.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from gradejax.models.config import DecoderConfig
from gradejax.models.layers import Linear, activation_fn
from gradejax.models.quantize import ragged_product


class ExpertLinear(nn.Module):
    """Rows sorted by expert, each through its expert's kernel [X, in, *out] and bias [X, *out]."""

    experts: int
    out: tuple[int, ...]
    bias: bool

    @nn.compact
    def __call__(self, x, counts, owner):
        """x [m, in], counts [X] rows of each expert, owner [m] the expert of each row."""
        start = nn.initializers.lecun_normal(batch_axis=0)
        shape = (self.experts, x.shape[-1], *self.out)
        size = math.prod(self.out)
        kernel = self.param(
            "kernel", lambda key: start(key, (*shape[:2], size)).reshape(shape)
        )
        y = ragged_product(x, kernel, counts, owner)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, (self.experts, *self.out))
            y = y + bias.astype(x.dtype)[owner]
        return y


class Mixture(nn.Module):
    """The MLP of a block made of experts; shares are a softmax over the chosen k (T21).

    Rows go in as a batch: ``jax.vmap`` over them is not to be had (``ragged_dot`` lacks it).
    """

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, lora=None):
        """[B, T, E] → [B, T, E].

        Raises:
          ValueError: adapters that name gate, up or down.
        """
        c = self.config
        if lora is not None and (named := sorted({"gate", "up", "down"} & lora.entries.keys())):
            raise ValueError(
                f"adapters on the experts of a mixture ({', '.join(named)}) are not supported; "
                "choose from q, k, v, o"
            )
        tokens = x.reshape(-1, c.width)
        scores = Linear((c.experts,), c.mlp_bias, name="router")(tokens)
        best, chosen = jax.lax.top_k(scores, c.experts_per_token)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        shares = jax.nn.softmax(best.astype(wide), axis=-1).astype(x.dtype)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        owner, rows = flat[order], order // c.experts_per_token
        counts = jnp.bincount(flat, length=c.experts).astype(jnp.int32)
        layer = lambda out, name: ExpertLinear(c.experts, out, c.mlp_bias, name=name)  # noqa: E731
        y = layer((2, c.mlp_width), "gate_up")(tokens[rows], counts, owner)
        y = layer((c.width,), "down")(self._activate(y[:, 0], y[:, 1]), counts, owner)
        y = y[jnp.argsort(order)].reshape(-1, c.experts_per_token, c.width)
        return jnp.sum(y * shares[:, :, None], axis=1).reshape(x.shape)

    def _activate(self, gate, up):
        c = self.config
        if c.swiglu_limit is None:
            return activation_fn(c.activation)(gate) * up
        gate = jnp.minimum(gate, c.swiglu_limit)
        up = jnp.clip(up, -c.swiglu_limit, c.swiglu_limit)
        return (up + 1) * gate * jax.nn.sigmoid(c.swiglu_alpha * gate)
