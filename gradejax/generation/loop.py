"""What runs on the device: prompts are read into shared parts, then one token a step.

Letters: P prompts, G samples of each, B = P·G rows, T tokens of a stretch, N new tokens, V
vocabulary, E width. Row p·G + g is sample g of prompt p.

A group's prompt is one row of a part and is never repeated: the G samples read it where it stands
(``models.attention``). Where every prompt has one sample the row writes on behind its prompt's
keys and values, so a step looks into one part fewer.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradejax.generation.greedy import most_probable
from gradejax.generation.sampling import sample
from gradejax.models.cache import KVCache, Part, as_parts, empty_cache, tokens_before
from gradejax.models.decoder import Decoder
from gradejax.models.lora import Lora
from gradejax.models.quantize import weight_first


@dataclasses.dataclass(frozen=True)
class Rules:
    """What fixes a compiled loop besides shapes.

    Attributes:
      max_new: N, the limit of a reply, its stop token included.
      stop_ids: ids that end a reply, sorted.
      greedy: whether every row takes the most probable token.
      top_k, top_p: see ``Sampling``.
      vocab: ids from here on are never drawn.
      pooling: how hidden states of the reply's tokens are pooled; None leaves them out, and with
        them the reading of the last token.
    """

    max_new: int
    stop_ids: tuple[int, ...]
    greedy: bool
    top_k: int = 0
    top_p: float = 1.0
    vocab: int | None = None
    pooling: str | None = None


class Loop(NamedTuple):
    """Where each row stands after ``place`` + 1 drawn tokens."""

    cache: KVCache  # own slots only; shared parts do not change and stay outside
    place: jax.Array  # [B] int32, index of the token drawn last
    token: jax.Array  # [B] int32, the token drawn last
    drawn: jax.Array  # [B] bool, whether that token is part of the reply
    running: jax.Array  # [B] bool, whether the reply goes on after it
    position: jax.Array  # [B] int32, of the token drawn last
    tokens: jax.Array  # [B, N] int32
    logprobs: jax.Array  # [B, N] float32
    lengths: jax.Array  # [B] int32
    pooled: jax.Array | None  # [B, E] float32, sum or pick of hidden states


def rows_lora(lora: Lora | None, samples: int) -> Lora | None:
    """The adapters' weights of P prompts for their P·G rows."""
    if lora is None or samples == 1:
        return lora
    return lora.replace(weights=jnp.repeat(lora.weights, samples, axis=0))


@functools.partial(jax.jit, static_argnames=("model", "count"))
def read(model: Decoder, params, tokens, mask, parts: Sequence[Part], lora, soft, count=None):
    """Read whole prompts at once.

    Args:
      model: the decoder.
      params: its tree.
      tokens: [P, T] int32, right-aligned.
      mask: [P, T] bool.
      parts: what stands before.
      lora: None or adapters with weights [P, n].
      soft: None or [P, m, E], embeddings that follow the prompt.
      count: static; None, or how many tokens products read, see ``Decoder.prefill``.

    Returns:
      final-normed states of the last places, [P, E], and the Part of the prompts.
    """
    if soft is None:
        states, part = model.apply(params, tokens, mask, parts=parts, lora=lora, count=count,
                                   method="prefill")  # fmt: skip
        return states[:, -1], part
    embeds = model.apply(params, tokens, method="embed")
    embeds = jnp.concatenate([embeds, soft.astype(embeds.dtype)], axis=1)
    mask = jnp.concatenate([mask, _soft_mask(mask, soft)], axis=1)
    states, part = model.apply(params, None, mask, embeds=embeds, parts=parts, lora=lora,
                               count=count, method="prefill")  # fmt: skip
    return states[:, -1], part


def _soft_mask(mask, soft):
    """A filler row has no soft prefix either."""
    return jnp.repeat(jnp.any(mask, axis=1, keepdims=True), soft.shape[1], axis=1)


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _read_on(model: Decoder, params, cache: KVCache, parts, tokens, mask, lora, soft, lengths):
    """One more stretch of the prompts, tokens [P, T] or, with tokens None, soft [P, m, E].

    ``lengths`` [P] is what a whole prompt has, for rotary scalings that depend on it.
    """
    if tokens is None:
        mask = _soft_mask(mask, soft)
    out = model.apply(params, tokens, mask, embeds=soft if tokens is None else None,
                      cache=cache.replace(parts=parts), lora=lora, lengths=lengths,
                      last_only=True)  # fmt: skip
    return out.hidden[:, -1], out.cache.replace(parts=())


@functools.partial(jax.jit, static_argnames=("model", "rows", "length"))
def _empty(model: Decoder, rows: int, length: int) -> KVCache:
    return empty_cache(model.config, rows, length, model.dtype)


def read_in_chunks(model: Decoder, params, tokens, mask, parts, lora, soft, *, chunk: int,
                   count: int | None = None):  # fmt: skip
    """``read`` in stretches of ``chunk`` tokens: the memory of a stretch, the same result.

    T is a multiple of the chunk. Each stretch sees the slots of those before it, so this is exact.
    """
    rows, length = tokens.shape
    if length <= chunk:
        return read(model, params, tokens, mask, parts, lora, soft, count)
    extra = 0 if soft is None else soft.shape[1]
    cache = _empty(model, rows, length + extra)
    lengths = jnp.sum(mask, axis=1, dtype=jnp.int32) + extra
    for at in range(0, length, chunk):
        last, cache = _read_on(model, params, cache, parts, tokens[:, at : at + chunk],
                               mask[:, at : at + chunk], lora, None, lengths)  # fmt: skip
    if soft is not None:
        last, cache = _read_on(model, params, cache, parts, None, mask, lora, soft, lengths)
    return last, as_parts(cache)[-1]


def cut_to(part: Part, slots: int) -> Part:
    """The last ``slots`` places of right-aligned rows; the others must be padding."""
    return part if part.positions.shape[1] == slots else _cut_to(part, slots)


@functools.partial(jax.jit, static_argnames="slots")
def _cut_to(part: Part, slots: int) -> Part:
    return Part(
        tuple((k[..., -slots:], v[..., -slots:, :]) for k, v in part.layers),
        part.positions[:, -slots:], part.real[:, -slots:],
    )  # fmt: skip


def _draw(model: Decoder, params, hidden, samples: int, rules: Rules, seeds, place, temperatures):
    """Tokens of B = P·samples rows and their log-probabilities, from states [P, E]."""

    logits = model.apply(params, hidden, method="logits")
    if rules.greedy:  # no noise, nothing sorted, and no copy of a prompt's logits for its rows
        first = weight_first(len(hidden))  # then the product lies so, and its turning is undone
        drawn = most_probable(logits.T if first else logits, first=first, vocab=rules.vocab)
        return tuple(jnp.repeat(x, samples, axis=0) for x in drawn)
    logits = jnp.repeat(logits, samples, axis=0)
    return sample(logits, seeds, place, temperatures, top_k=rules.top_k, top_p=rules.top_p,
                  vocab=rules.vocab)  # fmt: skip


def _ends(rules: Rules, token):
    stops = jnp.asarray(rules.stop_ids, jnp.int32)
    return jnp.any(token[:, None] == stops[None, :], axis=1)


def draw_first(model: Decoder, params, hidden, before: Sequence[Part], active, temperatures,
               seeds, *, rules: Rules, samples: int):  # fmt: skip
    """Draw the first token of every row; arguments as in ``start``.

    Returns:
      The fields of ``Loop`` after its cache.
    """
    position = tokens_before(before, hidden.shape[0])
    batch = hidden.shape[0] * samples
    place = jnp.zeros((batch,), jnp.int32)
    token, logprob = _draw(model, params, hidden, samples, rules, seeds, place, temperatures)
    none = jnp.zeros((batch, rules.max_new), jnp.int32)
    return (
        place,
        token,
        active,
        active & ~_ends(rules, token),
        jnp.repeat(position, samples),
        none.at[:, 0].set(jnp.where(active, token, 0)),
        none.astype(jnp.float32).at[:, 0].set(jnp.where(active, logprob, 0)),
        active.astype(jnp.int32),
        None if rules.pooling is None else jnp.zeros((batch, model.config.width), jnp.float32),
    )


@functools.partial(jax.jit, static_argnames=("model", "rules", "samples"))
def start(model: Decoder, params, hidden, parts, prompt: Part, active, temperatures, seeds, *,
          rules: Rules, samples: int) -> tuple[Loop, tuple[Part, ...]]:  # fmt: skip
    """Draw the first token of every row.

    Args:
      model: the decoder.
      params: its tree.
      hidden: [P, E] of ``read``.
      parts: what stands before the prompts.
      prompt: the prompts' part.
      active: [B] bool; filler rows never run.
      temperatures: [B] float32.
      seeds: [B] uint32.
      rules: see ``Rules``.
      samples: G.

    Returns:
      The loop's start, and the parts that its rows share.
    """
    first = draw_first(model, params, hidden, (*parts, prompt), active, temperatures, seeds,
                       rules=rules, samples=samples)  # fmt: skip
    if samples == 1:
        grow = lambda x, axis: jnp.pad(  # noqa: E731
            x, [(0, rules.max_new if i == axis else 0) for i in range(x.ndim)]
        )
        cache = KVCache(
            own=tuple((grow(k, 3), grow(v, 2)) for k, v in prompt.layers),
            positions=grow(prompt.positions, 1),
            filled=grow(prompt.real, 1),
            slot=jnp.asarray(prompt.positions.shape[1], jnp.int32),
        )
    else:
        cache = empty_cache(model.config, active.shape[0], rules.max_new, model.dtype)
        parts = (*parts, prompt)
    return Loop(cache, *first), parts


def _pool(pooling: str, pooled, hidden, drawn, place):
    """Take in the state of the token drawn last."""
    keep, hidden = drawn[:, None], hidden.astype(jnp.float32)
    if pooling == "mean":
        return pooled + jnp.where(keep, hidden, 0)
    return jnp.where(keep if pooling == "last" else keep & (place == 0)[:, None], hidden, pooled)


@functools.partial(jax.jit, static_argnames=("model", "rules"), donate_argnames="loop")
def run(model: Decoder, params, loop: Loop, parts, lora: Lora | None, temperatures, seeds, until,
        low=0, *, rules: Rules) -> Loop:  # fmt: skip
    """Draw tokens until at most ``low`` rows go on or one has ``until`` tokens.

    A step reads the token drawn last and draws the next. With a pooling the last token is read as
    well, for its state. Rows that have stopped are computed along and change nothing of theirs;
    once all have, the loop ends.

    Args:
      model: the decoder.
      params: its tree.
      loop: of ``start`` or ``run``; given up.
      parts: of ``start``.
      lora: None or adapters with weights [B, n].
      temperatures: [B] float32.
      seeds: [B] uint32.
      until: int32 scalar, at most ``rules.max_new``.
      low: int32 scalar; 0 ends with the last row.
      rules: see ``Rules``.
    """
    slots = loop.cache.length
    spots = jnp.arange(rules.max_new, dtype=jnp.int32)[None, :]

    def step(s: Loop) -> Loop:
        # Stopped rows go on writing into their own cache columns; nothing reads them.
        out = model.apply(
            params, s.token[:, None], s.drawn[:, None], positions=s.position[:, None],
            cache=s.cache.replace(parts=parts), lora=lora,
        )  # fmt: skip
        place = s.place + 1
        token, logprob = _draw(model, params, out.hidden[:, 0], 1, rules, seeds, place,
                               temperatures)  # fmt: skip
        goes_on = s.running & (place < rules.max_new)
        here = goes_on[:, None] & (spots == place[:, None])
        put = lambda all_, new: jnp.where(here, new[:, None], all_)  # noqa: E731
        return Loop(
            # Own slots are a ring: a row never has more tokens than there are (see ``refill``).
            cache=out.cache.replace(parts=(), slot=out.cache.slot % slots),
            place=place,
            token=token,
            drawn=goes_on,
            running=goes_on & ~_ends(rules, token),
            position=s.position + goes_on,  # a row that has stopped stays within the context
            tokens=put(s.tokens, token),
            logprobs=put(s.logprobs, logprob),
            lengths=s.lengths + goes_on,
            pooled=None if rules.pooling is None else _pool(
                rules.pooling, s.pooled, out.hidden[:, 0], s.drawn, s.place),
        )  # fmt: skip

    def wanted(s: Loop):
        at = going(s, rules)
        most = jnp.max(jnp.where(at, s.place, -1)) + 1
        # The last token (place max_new - 1) is read only for its pooled state.
        return (jnp.sum(at) > low) & ((most < until) | (until >= rules.max_new))

    return jax.lax.while_loop(wanted, step, loop)


def going(loop: Loop, rules: Rules):
    """Rows that need another step, [B] bool: to draw or, with a pooling, to read the last token."""
    if rules.pooling is None:
        return loop.running & (loop.place + 1 < rules.max_new)
    return loop.drawn


def results(loop: Loop, rules: Rules) -> dict[str, Any]:
    """What the host wants of a loop that is done."""
    pooled = loop.pooled
    if rules.pooling == "mean":
        pooled = pooled / jnp.maximum(loop.lengths, 1)[:, None]
    # A row that ended in its last place stopped; one that was cut would have gone on. The step that
    # reads the last token clears ``running``, so the last token itself tells.
    last = jnp.take_along_axis(loop.tokens, jnp.maximum(loop.lengths - 1, 0)[:, None], axis=1)
    return {
        "tokens": loop.tokens, "logprobs": loop.logprobs, "lengths": loop.lengths,
        "stopped": _ends(rules, last[:, 0]), "pooled": pooled,
    }  # fmt: skip
