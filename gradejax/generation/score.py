"""log p of given replies, without ever holding [B, T, V]: the head runs over chunks of places."""

import jax
import jax.numpy as jnp

from gradejax import ops
from gradejax.models.decoder import Decoder


def score(model: Decoder, params, tokens, mask, *, temperature: float = 1.0, chunk: int = 64,
          vocab: int | None = None):  # fmt: skip
    """Log-probability of every token given those before it in its row.

    Args:
      model: the decoder.
      params: its tree.
      tokens: [B, T] int32, prompt and reply; padding may stand on either side.
      mask: [B, T] bool, real tokens.
      temperature: > 0, the sampler's (fault A05).
      vocab: the sampler's: ids from here on have probability 0 (B10).
      chunk: places whose logits are held at once; recomputed in the backward pass.

    Returns:
      [B, T] float32; place t holds log p(token t | before t), 0 at a row's first token (it has
      none, fault B02) and at padding.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0 to score, got {temperature}")
    hidden = model.apply(params, tokens, mask, method="hidden")
    batch, length, width = hidden.shape
    places = length - 1
    chunk = min(chunk, max(places, 1))
    extra = -places % chunk
    shape = lambda x: jnp.moveaxis(  # noqa: E731
        jnp.pad(x, ((0, 0), (0, extra)) + ((0, 0),) * (x.ndim - 2)).reshape(
            batch, -1, chunk, *x.shape[2:]), 1, 0)  # fmt: skip

    @jax.checkpoint
    def part(piece):
        states, targets = piece
        logits = model.apply(params, states, method="logits")
        kind = jnp.promote_types(logits.dtype, jnp.float32)
        logits = logits.astype(kind) / temperature
        if vocab is not None and vocab < logits.shape[-1]:
            ids = jnp.arange(logits.shape[-1])
            logits = jnp.where(ids[None, None, :] < vocab, logits, -jnp.inf)
        return ops.token_logprobs(logits, targets)

    out = jax.lax.map(part, (shape(hidden[:, :-1]), shape(tokens[:, 1:])))
    out = jnp.moveaxis(out, 0, 1).reshape(batch, -1)[:, :places]
    known = mask[:, 1:] & mask[:, :-1]
    return jnp.pad(jnp.where(known, out, 0), ((0, 0), (1, 0)))
