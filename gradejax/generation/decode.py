"""Replies of a batch of prompts: prefill once, then one token a step until every row has stopped.

Prompts are right-aligned (left-padded) to a few bucketed lengths, so compilations stay bounded; a
row's tokens do not depend on its batch, its padding or its neighbours.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation.sampling import Sampling, sample
from gradejax.models.cache import KVCache, empty_cache
from gradejax.models.decoder import Decoder

BUCKETS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
POOLINGS = ("mean", "last", "first")


@dataclasses.dataclass(frozen=True)
class Generation:
    """One reply.

    Attributes:
      tokens: ids, the stop token included when there is one (B04, T9).
      logprobs: log-probability of each under the sampling distribution.
      finish_reason: "stop", or "length" when the limit cut it.
      hidden: [E] float32, last-layer states of the reply's tokens, pooled.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    hidden: np.ndarray


class _Loop(NamedTuple):
    cache: KVCache
    logits: jax.Array  # [B, V] of the token to draw next
    place: jax.Array  # int32 scalar
    running: jax.Array  # [B] bool
    tokens: jax.Array  # [B, N] int32
    logprobs: jax.Array  # [B, N] float32
    lengths: jax.Array  # [B] int32
    pooled: jax.Array  # [B, E] float32, sum or pick of hidden states


@functools.partial(
    jax.jit,
    static_argnames=(
        "model", "max_new", "stop_ids", "top_k", "top_p", "vocab", "pooling", "greedy",
    ),
)
def _decode(model: Decoder, params, tokens, mask, temperatures, seeds, *, max_new, stop_ids,
            top_k, top_p, vocab, pooling, greedy=False):  # fmt: skip
    batch, length = tokens.shape
    cache = empty_cache(model.config, batch, length + max_new, model.dtype)
    read = model.apply(params, tokens, mask, cache=cache, last_only=True)
    stops = jnp.asarray(stop_ids, jnp.int32)

    def step(s: _Loop) -> _Loop:
        drawn, logprob = sample(s.logits, seeds, s.place, temperatures,
                                top_k=top_k, top_p=top_p, vocab=vocab,
                                greedy=greedy)  # fmt: skip
        # Stopped rows go on writing into their own cache columns; nothing reads them.
        out = model.apply(params, drawn[:, None], s.running[:, None], cache=s.cache)
        hidden = out.hidden[:, 0].astype(jnp.float32)
        keep = s.running[:, None]
        pooled = {
            "mean": lambda: s.pooled + jnp.where(keep, hidden, 0),
            "last": lambda: jnp.where(keep, hidden, s.pooled),
            "first": lambda: jnp.where(keep & (s.place == 0), hidden, s.pooled),
        }[pooling]()
        ended = jnp.any(drawn[:, None] == stops[None, :], axis=1)
        return _Loop(
            cache=out.cache,
            logits=out.logits[:, 0],
            place=s.place + 1,
            running=s.running & ~ended,
            tokens=s.tokens.at[:, s.place].set(jnp.where(s.running, drawn, 0)),
            logprobs=s.logprobs.at[:, s.place].set(jnp.where(s.running, logprob, 0)),
            lengths=s.lengths + s.running,
            pooled=pooled,
        )

    start = _Loop(
        cache=read.cache,
        logits=read.logits[:, 0],
        place=jnp.zeros((), jnp.int32),
        running=jnp.any(mask, axis=1),  # filler rows have no token and never run
        tokens=jnp.zeros((batch, max_new), jnp.int32),
        logprobs=jnp.zeros((batch, max_new), jnp.float32),
        lengths=jnp.zeros((batch,), jnp.int32),
        pooled=jnp.zeros((batch, model.config.width), jnp.float32),
    )
    end = jax.lax.while_loop(lambda s: (s.place < max_new) & jnp.any(s.running), step, start)
    pooled = end.pooled
    if pooling == "mean":
        pooled = pooled / jnp.maximum(end.lengths, 1)[:, None]
    return end.tokens, end.logprobs, end.lengths, end.running, pooled


def bucket(length: int, limit: int) -> int:
    """The padded length for prompts of up to ``length`` tokens, at most ``limit``."""
    size = next((b for b in BUCKETS if b >= length), -(-length // 1024) * 1024)
    return min(size, limit)


def left_pad(prompts: Sequence[Sequence[int]], rows: int, length: int):
    """Token ids and mask, [rows, length], right-aligned; rows beyond the prompts are empty."""
    tokens, mask = np.zeros((rows, length), np.int32), np.zeros((rows, length), bool)
    for row, prompt in enumerate(prompts):
        if prompt:
            tokens[row, length - len(prompt) :] = prompt
            mask[row, length - len(prompt) :] = True
    return tokens, mask


def check_prompts(model: Decoder, prompts, max_new_tokens: int) -> None:
    """Raise ValueError for an empty prompt, an id out of range or one that cannot fit (B08)."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    limit = model.config.max_positions
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty; a reply needs at least one token to follow")
        if len(prompt) + max_new_tokens > limit:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; with {max_new_tokens} new ones that passes "
                f"the model's context of {limit}. Prompts are never cut: shorten it, or ask for "
                "fewer new tokens"
            )
        if min(prompt) < 0 or max(prompt) >= model.config.vocab_size:
            raise ValueError(
                f"prompt {i} has token ids {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{model.config.vocab_size - 1}"
            )


def generate(
    model: Decoder, params, prompts: Sequence[Sequence[int]], *, max_new_tokens: int,
    stop_ids: Sequence[int], sampling: Sampling, seeds: Sequence[int], pooling: str = "mean",
    batch_size: int = 64, vocab: int | None = None,
) -> list[Generation]:  # fmt: skip
    """Generate one reply a prompt.

    Args:
      model: the decoder.
      params: its tree.
      prompts: token ids, at least one each.
      max_new_tokens: limit of a reply, its stop token included.
      stop_ids: union of the tokenizer's, config's and generation_config's ids (B03).
      sampling: how tokens are drawn.
      seeds: one a row, 32 bits; the same seed and prompt give the same reply in any batch.
      pooling: how hidden states of the reply's tokens are pooled: "mean", "last" or "first".
      batch_size: rows run at once.
      vocab: ids from here on are never drawn.

    Returns:
      One Generation a prompt, in order.

    Raises:
      ValueError: see ``check_prompts``; unequal numbers of seeds and prompts; unknown pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}; choose from {', '.join(POOLINGS)}")
    if len(seeds) != len(prompts):
        raise ValueError(f"expected one seed a prompt: {len(prompts)} prompts, {len(seeds)} seeds")
    check_prompts(model, prompts, max_new_tokens)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # neighbours pad alike
    greedy = sampling.temperature == 0
    out: list[Generation | None] = [None] * len(prompts)
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        room = model.config.max_positions - max_new_tokens
        length = bucket(max(len(prompts[i]) for i in rows), room)
        tokens, mask = left_pad([prompts[i] for i in rows], batch_size, length)
        filler = [0] * (batch_size - len(rows))
        ids, logprobs, lengths, running, hidden = jax.device_get(
            _decode(
                model, params, tokens, mask,
                np.full((batch_size,), sampling.temperature, np.float32),
                np.asarray([seeds[i] for i in rows] + filler, np.uint32),
                max_new=max_new_tokens, stop_ids=tuple(sorted(set(stop_ids))),
                top_k=0 if greedy else sampling.top_k, top_p=1.0 if greedy else sampling.top_p,
                vocab=vocab, pooling=pooling, greedy=greedy,
            )
        )  # fmt: skip
        for row, i in enumerate(rows):
            n = int(lengths[row])
            out[i] = Generation(
                tokens=ids[row, :n].tolist(),
                logprobs=logprobs[row, :n].tolist(),
                finish_reason="length" if running[row] else "stop",
                hidden=hidden[row],
            )
    return out
