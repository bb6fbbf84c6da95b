"""Replies to prompts: what they have in common is read once, then all rows go a token a step.

Three things are shared and never repeated in memory: the tokens with which all prompts begin (one
row), each prompt among its samples (one row a prompt), and one compiled loop among all rows. A
row's tokens depend on its prompt, its seed and its adapters alone; not on its batch, its padding
or its neighbours.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from gradejax.generation import loop as loop_lib
from gradejax.generation import refill
from gradejax.generation.checks import SEEDS, stop_tokens, token_ids, whole
from gradejax.generation.loop import Rules
from gradejax.generation.prompts import (
    BUCKETS,
    as_prompts,
    bucket,
    check_prompts,
    left_pad,
    rows_at_once,
    sample_seed,
)
from gradejax.generation.reader import Reader
from gradejax.generation.sampling import Sampling
from gradejax.models.decoder import Decoder
from gradejax.models.lora import Lora

__all__ = ["BUCKETS", "POOLINGS", "Generation", "bucket", "generate", "left_pad", "sample_seed",
           "stream"]  # fmt: skip

POOLINGS = ("mean", "last", "first")
PREFILL_CHUNK = 512  # tokens of a prompt read at once


@dataclasses.dataclass(frozen=True)
class Generation:
    """One reply.

    Attributes:
      tokens: ids, the stop token included when there is one (B04, T9).
      logprobs: log-probability of each under the sampling distribution.
      finish_reason: "stop", or "length" when the limit cut it.
      hidden: [E] float32, last-layer states of the reply's tokens, pooled; None without pooling.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    hidden: np.ndarray | None

    @property
    def length(self) -> int:
        """Tokens of the reply, its stop token included."""
        return len(self.tokens)


def _rules(sampling: Sampling, max_new_tokens, stop_ids, vocab, pooling) -> Rules:
    greedy = sampling.temperature == 0
    return Rules(
        max_new=max_new_tokens, stop_ids=stop_ids, greedy=greedy,
        top_k=0 if greedy else sampling.top_k, top_p=1.0 if greedy else sampling.top_p,
        vocab=vocab, pooling=pooling,
    )  # fmt: skip


def _check(model, prompts, sampling, seeds, lora, soft, soft_of):
    if not isinstance(sampling, Sampling):
        raise ValueError(f"expected a Sampling, got {sampling!r:.200}")
    if len(seeds) != len(prompts):
        raise ValueError(f"expected one seed a prompt: {len(prompts)} prompts, {len(seeds)} seeds")
    if lora is not None and lora.weights is None:
        raise ValueError("this Lora does not say which rows use it; see Lora.for_rows or weights=")
    if lora is not None and len(lora.weights) != len(prompts):
        raise ValueError(
            f"expected the adapters' weights of {len(prompts)} prompts, got {len(lora.weights)}"
        )
    if soft is None:
        if soft_of is not None:
            raise ValueError("soft_of says which soft prefix a prompt has; soft is not given")
        return
    width = model.config.width
    shape = getattr(soft, "shape", ())
    if len(shape) != 3 or shape[2] != width:
        given = f"shape {shape}" if shape else f"{soft!r:.200}"
        raise ValueError(f"expected a soft prefix [n, m, E] of width E = {width}, got {given}")
    if soft_of is None and len(soft) != len(prompts):
        raise ValueError(
            f"expected one soft prefix a prompt ({len(prompts)}), got {len(soft)}; or give soft_of"
        )
    if soft_of is not None:
        if len(soft_of) != len(prompts):
            raise ValueError(f"expected {len(prompts)} entries of soft_of, got {len(soft_of)}")
        if len(soft_of) and not 0 <= min(soft_of) <= max(soft_of) < len(soft):
            raise ValueError(f"soft_of must lie in 0 to {len(soft) - 1}, got {list(soft_of)}")


def generate(
    model: Decoder, params, prompts: Sequence[Sequence[int]], *, max_new_tokens: int,
    stop_ids: Sequence[int], sampling: Sampling, seeds: Sequence[int], samples: int = 1,
    pooling: str | None = "mean", batch_size: int = 64, vocab: int | None = None,
    lora: Lora | None = None, soft=None, soft_of: Sequence[int] | None = None,
    prefill_chunk: int = PREFILL_CHUNK, share_prefix: bool = True,
    sharding: jax.sharding.NamedSharding | None = None,
) -> list[Generation]:  # fmt: skip
    """Generate ``samples`` replies a prompt.

    Args:
      model: the decoder.
      params: its tree.
      prompts: token ids, at least one each.
      max_new_tokens: limit of a reply, its stop token included.
      stop_ids: union of the tokenizer's, config's and generation_config's ids (B03).
      sampling: how tokens are drawn.
      seeds: one a prompt, 32 bits; the same seed and prompt give the same reply in any batch.
        Sample g of a prompt has the seed ``sample_seed(seed, g)``: it is the reply of a call of
        its own with that seed, and sample 0 that of the prompt's own seed.
      samples: G; a prompt is read once for all of them.
      pooling: how hidden states of the reply's tokens are pooled: "mean", "last" or "first"; None
        leaves them out and spares reading the last token.
      batch_size: rows run at once, at most; fewer prompts run in a smaller power of two.
      vocab: ids from here on are never drawn.
      lora: adapters with one row of weights a prompt.
      soft: [n, m, E], embeddings of m places that follow a prompt as tokens would; one a prompt
        unless ``soft_of`` says which.
      soft_of: for each prompt, its row of ``soft``.
      prefill_chunk: longer prompts are read in stretches of so many tokens.
      share_prefix: whether tokens with which all prompts begin are read once.
      sharding: how rows are laid out over devices (its first axis); prompts and rows of a batch
        must be multiples of the devices. Parameters lie where the caller put them.

    Returns:
      One Generation a row, prompt by prompt: sample g of prompt p at p · samples + g.

    Raises:
      ValueError: see ``check_prompts``; unequal numbers of seeds, weights or soft prefixes and
        prompts; an unknown pooling; a count that is no whole number of at least 1.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}; choose from {', '.join(POOLINGS)}")
    prompts, stop_ids = as_prompts(prompts), stop_tokens(stop_ids)
    seeds = token_ids("seeds", seeds, SEEDS, "whole numbers")
    max_new_tokens, samples = whole("max_new_tokens", max_new_tokens), whole("samples", samples)
    batch_size = whole("batch_size", batch_size)
    prefill_chunk = whole("prefill_chunk", prefill_chunk)
    vocab = None if vocab is None else whole("vocab", vocab)
    if soft_of is not None:
        soft_of = token_ids("soft_of", soft_of, what="whole numbers")
    _check(model, prompts, sampling, seeds, lora, soft, soft_of)
    check_prompts(model, prompts, max_new_tokens, 0 if soft is None else soft.shape[1])
    if not prompts:
        return []
    place = (lambda x: x) if sharding is None else (lambda x: jax.device_put(x, sharding))
    rules = _rules(sampling, max_new_tokens, stop_ids, vocab, pooling)
    count = max(batch_size // samples, 1)  # prompts at once
    if sharding is None:
        count = rows_at_once(len(prompts), count)
    at_once = min(samples, batch_size)  # samples at once
    reader = Reader(model, params, prompts, lora, soft, soft_of, max_new=max_new_tokens,
                     chunk=prefill_chunk, place=place, alone=not share_prefix,
                     dense=sharding is None)  # fmt: skip
    if samples == 1 and len(prompts) > batch_size and lora is None and sharding is None:
        single: list[Generation | None] = [None] * len(prompts)
        for i, got, row in refill.replies(
            model, params, reader, reader.own_lengths(), [sample_seed(s, 0) for s in seeds],
            sampling.temperature, rules, batch_size,
        ):  # fmt: skip
            single[i] = _generation(got, row)
        return single
    temperatures = place(np.full((count * at_once,), sampling.temperature, np.float32))
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # neighbours pad alike
    out: list[Generation | None] = [None] * (len(prompts) * samples)
    for at in range(0, len(order), count):
        rows = order[at : at + count]
        hidden, parts, part = reader.read(rows, count)
        row_lora = loop_lib.rows_lora(reader.lora_of(rows, count), at_once)
        for first in range(0, samples, at_once):
            numbers = range(first, first + at_once)
            row_seeds, active = np.zeros((count, at_once), np.uint32), np.zeros(
                (count, at_once), bool)  # fmt: skip
            for r, i in enumerate(rows):
                row_seeds[r] = [sample_seed(seeds[i], g) for g in numbers]
                active[r] = [g < samples for g in numbers]
            row_seeds = place(row_seeds.reshape(-1))
            state, shared = loop_lib.start(
                model, params, hidden, parts, part, place(active.reshape(-1)), temperatures,
                row_seeds, rules=rules, samples=at_once,
            )  # fmt: skip
            state = loop_lib.run(model, params, state, shared, row_lora, temperatures, row_seeds,
                                 max_new_tokens, rules=rules)  # fmt: skip
            got = jax.device_get(loop_lib.results(state, rules))
            for r, i in enumerate(rows):
                for k, g in enumerate(numbers):
                    if g < samples:
                        out[i * samples + g] = _generation(got, r * at_once + k)
    return out


def _generation(got, row: int) -> Generation:
    n = int(got["lengths"][row])
    return Generation(
        tokens=got["tokens"][row, :n].tolist(),
        logprobs=got["logprobs"][row, :n].tolist(),
        finish_reason="stop" if got["stopped"][row] else "length",
        hidden=None if got["pooled"] is None else got["pooled"][row],
    )


def stream(
    model: Decoder, params, prompt: Sequence[int], *, max_new_tokens: int,
    stop_ids: Sequence[int], sampling: Sampling, seed: int = 0, vocab: int | None = None,
    lora: Lora | None = None, soft=None, prefill_chunk: int = PREFILL_CHUNK, every: int = 1,
) -> Iterator[int]:  # fmt: skip
    """The tokens of one reply as they are drawn; the same as ``generate`` gives.

    Args:
      every: tokens drawn between two looks at them; more is a little faster.
      lora: adapters with weights [1, n].
      soft: [1, m, E].

    Others as in ``generate``.

    Yields:
      ids, the stop token included.

    Raises:
      ValueError: as ``generate``, before the first token is asked for.
    """
    prompts, stop_ids = as_prompts([prompt]), stop_tokens(stop_ids)
    seed = whole("seed", seed, 0, SEEDS - 1)
    max_new_tokens, every = whole("max_new_tokens", max_new_tokens), whole("every", every)
    prefill_chunk = whole("prefill_chunk", prefill_chunk)
    vocab = None if vocab is None else whole("vocab", vocab)
    _check(model, prompts, sampling, [seed], lora, soft, None)
    check_prompts(model, prompts, max_new_tokens, 0 if soft is None else soft.shape[1])

    def tokens() -> Iterator[int]:
        rules = _rules(sampling, max_new_tokens, stop_ids, vocab, None)
        reader = Reader(model, params, prompts, lora, soft, None, max_new=max_new_tokens,
                         chunk=prefill_chunk, place=lambda x: x, alone=True)  # fmt: skip
        hidden, parts, part = reader.read([0], 1)
        seeds = np.asarray([sample_seed(seed, 0)], np.uint32)
        temperatures = np.full((1,), sampling.temperature, np.float32)
        state, parts = loop_lib.start(model, params, hidden, parts, part, np.ones(1, bool),
                                      temperatures, seeds, rules=rules, samples=1)  # fmt: skip
        said = 0
        while True:
            length, going = int(state.lengths[0]), bool(state.running[0])
            yield from np.asarray(state.tokens[0, said:length]).tolist()
            said = length
            if not going or length >= max_new_tokens:
                return
            state = loop_lib.run(
                model, params, state, parts, lora, temperatures, seeds,
                min(said + every, max_new_tokens), rules=rules,
            )  # fmt: skip

    return tokens()
