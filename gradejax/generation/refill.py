"""A batch that stays full: rows whose reply has ended make room for the next prompts.

Replies differ much in length, and a batch that waits for its longest one computes mostly rows that
have stopped (of the tiny experts' replies, 25 tokens on average and 80 at most, two rows in three).
A row's own slots are a ring: a prompt that takes over a row is written before the slot that comes
next for all rows, and what the row held until then is forgotten. Slots are as many as the longest
prompt and reply together, so nothing that is still read is written over.
"""

import functools
from collections import deque
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation import loop as loop_lib
from gradejax.generation.loop import Loop, Rules
from gradejax.generation.prompts import bucket
from gradejax.models.cache import Part, empty_cache
from gradejax.models.decoder import Decoder

SHARE = 4  # a batch is filled up again when a quarter of its rows is free


def plan(lengths: Sequence[int], limit: int, rows: int) -> list[tuple[int, list[int]]]:
    """Prompts by padded length: [(length, their numbers)], longest first.

    Every length is compiled for, so one that fewer prompts have than a batch has ``rows`` takes the
    next shorter ones along.
    """
    by_length: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        by_length.setdefault(bucket(length, limit), []).append(i)
    groups: list[tuple[int, list[int]]] = []
    for length in sorted(by_length, reverse=True):
        if groups and len(groups[-1][1]) < rows:
            groups[-1][1].extend(by_length[length])
        else:
            groups.append((length, by_length[length]))
    return groups


@functools.partial(jax.jit, static_argnames=("model", "rows", "slots", "rules"))
def _empty(model: Decoder, rows: int, slots: int, rules: Rules) -> Loop:
    """A loop in which no row goes."""
    none = jnp.zeros((rows,), jnp.int32)
    kept = jnp.zeros((rows, rules.max_new), jnp.int32)
    return Loop(
        cache=empty_cache(model.config, rows, slots, model.dtype),
        place=none, token=none, drawn=none > 0, running=none > 0, position=none,
        tokens=kept, logprobs=kept.astype(jnp.float32), lengths=none,
        pooled=None if rules.pooling is None else jnp.zeros(
            (rows, model.config.width), jnp.float32),
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("model", "rules"), donate_argnames="loop")
def fill(model: Decoder, params, loop: Loop, hidden, parts: Sequence[Part], prompt: Part, rows,
         temperatures, seeds, *, rules: Rules) -> Loop:  # fmt: skip
    """Put prompts into rows that are free and draw their first tokens.

    Args:
      model: the decoder.
      params: its tree.
      loop: of B rows; given up.
      hidden: [P, E] of ``loop.read``.
      parts: what stands before the prompts, common to all.
      prompt: the prompts' part, P rows of T slots, T + max_new at most the loop's slots.
      rows: [P] int32, where each goes; B or more for fillers, which go nowhere.
      temperatures: [P] float32.
      seeds: [P] uint32.
      rules: see ``Rules``.
    """
    cache, slots = loop.cache, loop.cache.length
    length = prompt.positions.shape[1]

    def put(old, new):
        return old.at[rows].set(new.astype(old.dtype), mode="drop")

    def ring(old, new, axis):
        wide = jnp.pad(new, [(0, slots - length if i == axis else 0) for i in range(new.ndim)])
        return put(old, jnp.roll(wide, cache.slot - length, axis=axis))

    first = loop_lib.draw_first(
        model, params, hidden, (*parts, prompt), rows < len(loop.lengths), temperatures, seeds,
        rules=rules, samples=1,
    )  # fmt: skip
    cache = cache.replace(
        own=tuple((ring(k, a, 3), ring(v, b, 2))
                  for (k, v), (a, b) in zip(cache.own, prompt.layers, strict=True)),
        positions=ring(cache.positions, prompt.positions, 1),
        filled=ring(cache.filled, prompt.real, 1),
    )  # fmt: skip
    return Loop(cache, *(
        None if new is None else put(old, new) for old, new in zip(loop[1:], first, strict=True)
    ))  # fmt: skip


def replies(model: Decoder, params, reader, lengths: Sequence[int], seeds: Sequence[int],
            temperature: float, rules: Rules, batch_size: int) -> Iterator[tuple[int, dict, int]]:
    """Replies to all prompts, in the order in which they end.

    Args:
      model: the decoder.
      params: its tree.
      reader: of ``decode``; reads prompts by their numbers.
      lengths: own tokens of each prompt, without what all have in common.
      seeds: 32 bits, one a prompt.
      temperature: of all rows.
      rules: see ``Rules``.
      batch_size: B rows run at once.

    Yields:
      (number of the prompt, ``loop.results`` of the batch on the host, its row there).
    """
    part = max(batch_size // SHARE, 1)
    heat = np.full((batch_size,), temperature, np.float32)
    for length, numbers in plan(lengths, reader.room, batch_size):
        length = reader.padded(length)
        state = _empty(model, batch_size, length + reader.extra + rules.max_new, rules)
        owner, row_seeds = np.full(batch_size, -1), np.zeros(batch_size, np.uint32)
        pending, parts = deque(numbers), ()
        while pending or (owner >= 0).any():
            free = np.flatnonzero(owner < 0)
            while pending and len(free) >= part:
                taken = [pending.popleft() for _ in range(min(part, len(pending)))]
                rows, free = free[: len(taken)], free[part:]
                hidden, parts, prompt = reader.read(taken, part, length)
                owner[rows], row_seeds[rows] = taken, [seeds[i] for i in taken]
                places = np.full(part, batch_size, np.int32)
                places[: len(taken)] = rows
                new_seeds = np.zeros(part, np.uint32)
                new_seeds[: len(taken)] = row_seeds[rows]
                state = fill(model, params, state, hidden, parts, prompt, places, heat[:part],
                             new_seeds, rules=rules)  # fmt: skip
            low = batch_size - part if pending else 0
            state = loop_lib.run(model, params, state, parts, None, heat, row_seeds,
                                 rules.max_new, low, rules=rules)  # fmt: skip
            going = np.asarray(loop_lib.going(state, rules))
            ended = np.flatnonzero((owner >= 0) & ~going)
            got = jax.device_get(loop_lib.results(state, rules))
            for row in ended:
                yield int(owner[row]), got, int(row)
            owner[ended] = -1
