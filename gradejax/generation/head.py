"""The head: log p of given tokens without ever holding [N, V].

The head runs over chunks of tokens. Each token's log-probability depends on its own
hidden state alone, so the derivative of a chunk is one [chunk, E] array whatever comes after: it is
taken together with the value, while the chunk's logits are there, and the backward pass is one
elementwise product. Nothing of size V is kept and no logit is computed twice. Where the head itself
is trained the backward pass computes the logits again, since its gradient is a sum that needs the
weight of every token.
"""

import functools
import math

import jax
import jax.numpy as jnp

from gradejax.models.decoder import Decoder

CHUNK_ELEMENTS = 2**23  # of a chunk's logits: 32 MiB in float32


def chunk_for(vocab_size: int) -> int:
    """Tokens whose logits are held at once, a power of two of at least 16."""
    return max(16, 2 ** int(math.log2(max(CHUNK_ELEMENTS // vocab_size, 1))))


def token_logprobs(model: Decoder, params, hidden, tokens, *, temperature: float = 1.0,
                   vocab: int | None = None, chunk: int | None = None):  # fmt: skip
    """log p(token | hidden state before it) under the sampler's temperature and vocabulary.

    Args:
      model: the decoder.
      params: its tree; only the head's (tied: the embedding's) part is read.
      hidden: [..., E] final-normed states, each of the place before its token.
      tokens: [...] int32 in [0, V); another id gives NaN.
      temperature: static, > 0.
      vocab: ids from here on have probability 0 (B10).
      chunk: tokens whose logits are held at once; by default about 32 MiB of them.

    Returns:
      [...] float32 (float64 for float64 states).

    Raises:
      ValueError: a temperature that is not above 0, or shapes that do not fit.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0 to score, got {temperature}")
    if hidden.shape[:-1] != tokens.shape:
        raise ValueError(
            f"expected one token a hidden state, {hidden.shape[:-1]}; got tokens {tokens.shape}"
        )
    count = math.prod(tokens.shape)
    chunk = min(chunk or chunk_for(model.config.vocab_size), max(count, 1))
    extra = -count % chunk
    states = jnp.pad(hidden.reshape(count, -1), ((0, extra), (0, 0)))
    ids = jnp.pad(tokens.reshape(count), (0, extra))
    name = "embedding" if model.config.tied else "head"
    head = {"params": {name: params["params"][name]}}
    out = _chunked(model, float(temperature), vocab, head,
                   states.reshape(-1, chunk, hidden.shape[-1]), ids.reshape(-1, chunk))  # fmt: skip
    return out.reshape(-1)[:count].reshape(tokens.shape)


def _of_chunk(model, temperature, vocab, head, states, ids):
    """[c, E] states and [c] ids → [c] log-probabilities."""
    logits = model.apply(head, states, method="logits")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if temperature != 1.0:
        logits = logits / temperature
    places = jnp.arange(logits.shape[-1])[None, :]
    if vocab is not None and vocab < logits.shape[-1]:
        logits = jnp.where(places < vocab, logits, -jnp.inf)
    # A sum over a comparison and not a gather: its derivative is no scatter into [c, V].
    own = jnp.sum(jnp.where(places == ids[:, None], logits, 0), axis=-1)
    known = (ids >= 0) & (ids < logits.shape[-1])
    return jnp.where(known, own - jax.nn.logsumexp(logits, axis=-1), jnp.nan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _chunked(model, temperature, vocab, head, states, ids):
    return jax.lax.map(lambda x: _of_chunk(model, temperature, vocab, head, *x), (states, ids))


def _forward(model, temperature, vocab, head, states, ids):
    trained = any(x.perturbed for x in jax.tree.leaves(head, is_leaf=_is_primal))
    head, states, ids = jax.tree.map(lambda x: x.value, (head, states, ids), is_leaf=_is_primal)
    if trained:
        return _chunked(model, temperature, vocab, head, states, ids), (head, states, ids)

    def part(piece):
        out, pull = jax.vjp(
            lambda s: _of_chunk(model, temperature, vocab, head, s, piece[1]), piece[0]
        )
        return out, pull(jnp.ones_like(out))[0]

    out, slope = jax.lax.map(part, (states, ids))
    return out, slope


def _is_primal(x):
    return hasattr(x, "perturbed")


def _backward(model, temperature, vocab, saved, weight):
    if not isinstance(saved, tuple):  # the head is frozen: its derivative was taken already
        if isinstance(weight, jax.custom_derivatives.SymbolicZero):
            return None, None, None
        # 0 · NaN: a padded place may hold anything, and its weight is 0.
        weight = weight[..., None]
        return None, jnp.where(weight == 0, 0, weight * saved).astype(saved.dtype), None
    head, states, ids = saved
    if isinstance(weight, jax.custom_derivatives.SymbolicZero):
        return None, None, None

    def part(total, piece):
        s, i, w = piece
        _, pull = jax.vjp(lambda h, s: _of_chunk(model, temperature, vocab, h, s, i), head, s)
        of_head, of_states = pull(w)
        return jax.tree.map(jnp.add, total, of_head), of_states

    total, of_states = jax.lax.scan(
        part, jax.tree.map(jnp.zeros_like, head), (states, ids, weight)
    )
    return total, of_states, None


_chunked.defvjp(_forward, _backward, symbolic_zeros=True)
