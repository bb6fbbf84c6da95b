"""Prompts before they are read: what is allowed, padded lengths, what a batch has in common.

Prompts are right-aligned (left-padded) to a few lengths, so compilations stay bounded.
"""

import os.path
from collections.abc import Sequence

import numpy as np

from gradejax.generation.checks import listed, token_ids, whole
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.rotary import Rope

BUCKETS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Lengths of a common prefix are few: each stands beside every length of what follows it.
COMMON_BUCKETS = (32, 128, 512, 2048)
# Places in which short prompts stand side by side where that spares products, by padded length.
SPARSE = {32: 20, 64: 64}
MIN_COMMON = 16  # a shorter common prefix costs less than a second prefill


def ropes_by_length(config: DecoderConfig) -> tuple[Rope, ...]:
    """The config's rotary scalings that depend on a row's length (``Rope.by_length``)."""
    ropes = {config.rope_of(i) for i in range(config.num_layers)} - {None}
    return tuple(r for r in ropes if r.by_length)


def bucket(length: int, limit: int) -> int:
    """The padded length for prompts of up to ``length`` tokens, at most ``limit``."""
    size = next((b for b in BUCKETS if b >= length), -(-length // 1024) * 1024)
    return min(size, limit)


def common_bucket(length: int) -> int:
    """The padded length of a common prefix."""
    return next((b for b in COMMON_BUCKETS if b >= length), -(-length // 2048) * 2048)


def rows_at_once(count: int, batch_size: int) -> int:
    """Rows of a batch for ``count`` of them: a power of two, so that shapes stay few.

    One prompt must not cost what a whole batch costs: with 64 rows its reply took 40 times as long.
    """
    return min(batch_size, 2 ** max(count - 1, 0).bit_length())


def reading_shape(lengths: Sequence[int], rows: int, slots: int) -> tuple[int, int | None]:
    """The shape in which prompts are read: (padded length, tokens that products read).

    Padded lengths are powers of two, and products read all places (None) or one certain share of
    them, so prompts of 1 to 512 tokens are read in nine shapes at most, whatever their mixture, for
    each number of ``rows`` (see ``rows_at_once``).
    What was read is cut to its ``slots`` afterwards.

    Args:
      lengths: tokens of each prompt, its soft prefix included.
      rows: of the batch, fillers included.
      slots: at least the longest prompt, without a soft prefix.
    """
    length = max(32, 2 ** (slots - 1).bit_length())
    sparse = rows * SPARSE.get(length, 3 * length // 4)
    return length, sparse if sum(lengths) <= sparse < rows * length else None


def left_pad(prompts: Sequence[Sequence[int]], rows: int, length: int):
    """Token ids and mask, [rows, length], right-aligned; rows beyond the prompts are empty."""
    tokens, mask = np.zeros((rows, length), np.int32), np.zeros((rows, length), bool)
    for row, prompt in enumerate(prompts):
        if len(prompt):
            tokens[row, length - len(prompt) :] = prompt
            mask[row, length - len(prompt) :] = True
    return tokens, mask


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all prompts begin and that are worth reading once, or 0.

    Every prompt keeps at least one token of its own: the first logits are its own. A single
    prompt has nothing in common with another.
    """
    if len(prompts) < 2:
        return 0
    shared = min(len(os.path.commonprefix([list(p) for p in prompts])),
                 min(len(p) for p in prompts) - 1)  # fmt: skip
    return shared if shared >= MIN_COMMON else 0


def sample_seed(seed: int, sample: int) -> int:
    """Seed of one sample of a group, 32 bits: that of its prompt and its number in the group.

    Sample 0 has the prompt's own seed, so a group begins with the reply that the prompt gets
    alone, and sample g is the reply of a call with this seed. The mixing is MurmurHash3's
    32-bit finaliser (public domain): neighbouring seeds share no samples.
    """
    if sample == 0:
        return int(seed) & 0xFFFFFFFF
    x = (int(seed) + sample * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def as_prompts(prompts) -> list[list[int]]:
    """Prompts as lists of ints; arrays will do.

    Raises:
      ValueError: no list of lists of whole numbers.
    """
    given = listed("prompts to be a list of lists of token ids", prompts)
    return [token_ids(f"prompt {i}", prompt) for i, prompt in enumerate(given)]


def check_prompts(model: Decoder, prompts, max_new_tokens: int, extra: int = 0) -> None:
    """Raise ValueError for an empty prompt, an id out of range or one that cannot fit (B08).

    A reply that would cross the original context of a ``longrope`` model is refused as well: the
    model turns every key anew there, and those in the cache would keep the old turn (T17).

    Args:
      model: the decoder.
      prompts: token ids, as ``as_prompts`` gives them.
      max_new_tokens: limit of a reply.
      extra: places of a soft prefix after the prompt.
    """
    whole("max_new_tokens", max_new_tokens)
    limit = model.config.max_positions
    crossing = [r for r in ropes_by_length(model.config) if r.kind == "longrope"]
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty; a reply needs at least one token to follow")
        if len(prompt) + extra + max_new_tokens > limit:
            soft = f", a soft prefix of {extra}" if extra else ""
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens{soft}; with {max_new_tokens} new ones that "
                f"passes the model's context of {limit}. Prompts are never cut: shorten it, or ask "
                "for fewer new tokens"
            )
        for rope in crossing:
            old, read = rope.original_max_positions, len(prompt) + extra
            if read <= old < read + max_new_tokens:
                raise ValueError(
                    f"prompt {i} has {read} tokens; within {max_new_tokens} new ones its row "
                    f"passes {old}, where this model's rotary scaling (longrope) changes for all "
                    "tokens. "
                    f"Ask for at most {old - read} new tokens, or give a prompt of over {old}"
                )
        if min(prompt) < 0 or max(prompt) >= model.config.vocab_size:
            raise ValueError(
                f"prompt {i} has token ids {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{model.config.vocab_size - 1}"
            )
