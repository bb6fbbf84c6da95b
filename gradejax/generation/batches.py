"""Whole rows of one model, in batches of a few shapes; what is read of them is compiled once."""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation.prompts import bucket, rows_at_once
from gradejax.generation.score import score
from gradejax.models.config import DecoderConfig

POOLS = ("last", "first", "mean", None)


def batches(
    ids: Sequence[Sequence[int]], batch_size: int, limit: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Rows of like lengths together, right-padded.

    Args:
      ids: token ids of each row.
      batch_size: rows of a batch, at most; the last one's missing rows are all padding.
      limit: longest length there is.

    Yields:
      numbers of the rows, tokens and mask [B, T], the same B for all.
    """
    batch_size = rows_at_once(len(ids), batch_size)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        length = bucket(max(len(ids[i]) for i in rows), limit)
        tokens = np.zeros((batch_size, length), np.int32)
        mask = np.zeros((batch_size, length), bool)
        for r, i in enumerate(rows):
            tokens[r, : len(ids[i])], mask[r, : len(ids[i])] = ids[i], True
        yield rows, tokens, mask


def check_rows(config: DecoderConfig, ids: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for a row without tokens, one beyond the context or ids it cannot embed."""
    for i, row in enumerate(ids):
        if not row:
            raise ValueError(f"text {i} has no tokens")
        check_length(config, len(row), i)
        rows = config.vocab_size
        if odd := sorted({t for t in row if not 0 <= t < rows}):
            raise ValueError(
                f"text {i} has token ids {odd[:5]}; the model's embedding holds 0 to {rows - 1}"
                ": the tokenizer is not this model's"
            )


def check_length(config: DecoderConfig, length: int, row: int) -> None:
    """Raise ValueError for a row beyond the context."""
    if length > config.max_positions:
        raise ValueError(
            f"row {row} has {length} tokens, more than the model's context of "
            f"{config.max_positions}; it is never cut: shorten it"
        )


def id_rows(input_ids, attention_mask, config: DecoderConfig) -> tuple[np.ndarray, np.ndarray]:
    """[B, T] int32 and bool from what a caller gives.

    Raises:
      ValueError: other shapes or kinds, no row or no place, ids the model does not know, a mask of
        other values than 0 and 1 or without a real token in a row, or a row beyond the context.
    """
    ids = _array("input_ids [B, T] of integers", input_ids)
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise ValueError(
            f"expected input_ids [B, T] of integers, at least one row of at least one; got "
            f"{ids.dtype} {ids.shape}"
        )
    mask = np.ones(ids.shape, bool)
    if attention_mask is not None:
        mask = _array(f"attention_mask {ids.shape}", attention_mask)
        if mask.shape != ids.shape:
            raise ValueError(f"expected attention_mask {ids.shape}, got {mask.shape}")
        if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
            raise ValueError(
                f"expected an attention_mask of 1 (real) and 0 (padding), got {mask.dtype} with "
                f"{np.unique(mask)[:5].tolist()}"
            )
    mask = mask.astype(bool)
    vocab = config.vocab_size
    if not 0 <= ids.min() <= ids.max() < vocab:
        raise ValueError(f"expected ids in 0 to {vocab - 1}, got {ids.min()} to {ids.max()}")
    counts = mask.sum(axis=1)
    if not counts.all():
        raise ValueError(f"row {counts.argmin()} of the attention_mask has no real token")
    check_length(config, int(counts.max()), int(counts.argmax()))
    return ids.astype(np.int32), mask


def _array(expected: str, values) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"expected {expected}, got rows of unequal lengths") from None


@functools.partial(jax.jit, static_argnames=("model", "temperature", "vocab"))
def score_rows(model, params, tokens, mask, lora, lengths=None, *, temperature, vocab):
    """``score`` of whole rows, [B, T]."""
    return score(model, params, tokens, mask, temperature=temperature, vocab=vocab, lora=lora,
                 lengths=lengths)  # fmt: skip


@functools.partial(jax.jit, static_argnames=("model", "layer", "pool"))
def hidden_rows(model, params, tokens, mask, lora, *, layer, pool):
    """States of a layer, [B, T, E], or pooled over each row's right-padded tokens, [B, E]."""
    states = model.apply(params, tokens, mask, lora=lora, layer=layer, method="hidden")
    if pool is None:
        return states
    count = jnp.sum(mask, axis=1)
    if pool == "mean":
        wide = jnp.where(mask[..., None], states.astype(jnp.float32), 0)
        return jnp.sum(wide, axis=1) / jnp.maximum(count, 1)[:, None]
    place = jnp.zeros_like(count) if pool == "first" else jnp.maximum(count - 1, 0)
    return jnp.take_along_axis(states, place[:, None, None], axis=1)[:, 0]


@functools.partial(jax.jit, static_argnames="model")
def logits_rows(model, params, tokens, mask, lora):
    """Logits of every place, [B, T, V]."""
    return model.apply(params, tokens, mask, lora=lora).logits
