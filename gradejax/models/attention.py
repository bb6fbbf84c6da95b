"""Attention over keys and values that come in parts, some of them common to several rows.

A system prompt is one part of one row, a group's prompt a part of one row a group, a row's own
tokens a part of as many rows as there are: queries are reshaped to the part's rows, so nothing
common is ever copied. One softmax runs over all parts together.

Letters: B rows, T query tokens, S key slots, P rows of a part, G = B / P rows that share one of
them, K key heads, R query heads a key head, H head_dim.
"""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from gradejax.models.fused_attention import fused, serves

SHARED_SEGMENT = -1  # of packed rows: seen by every segment, such as a common system prompt


@flax.struct.dataclass
class KeyValues:
    """One part: row b of the queries reads row b // (B / P).

    k [P, K, H, S]; v [P, K, S, H]; positions [P, S] int32; real [P, S] bool; segments [P, S] int32,
    or None where every query may see the part.
    """

    k: Any
    v: Any
    positions: Any
    real: Any
    segments: Any = None


def token_positions(mask):
    """Position of each token from its row's mask, [B, T] int32; pads get 0 (fault B01)."""
    return jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=1) - 1, 0)


def causal_mask(positions, key_positions, key_real, *, window=None, segments=None,
                key_segments=None):  # fmt: skip
    """Which slots of a part each query may see, [P, G, T, S] bool.

    Windows count positions, not slots, so padding does not eat into them (T11).

    Args:
      positions: [B, T] int32, of the queries.
      key_positions: [P, S] int32.
      key_real: [P, S] bool.
      window: keys a query may see, itself included; None sees all.
      segments: [B, T] int32 with ``key_segments`` [P, S]: packed rows see their own segment and
        SHARED_SEGMENT only.
      key_segments: see ``segments``; None is seen by every segment.
    """
    rows = _rows_of(positions.shape[0], key_positions.shape[0])
    apart = lambda x: x.reshape(*rows, -1)[..., None]  # noqa: E731
    common = lambda x: x[:, None, None, :]  # noqa: E731
    gap = apart(positions) - common(key_positions)
    mask = (gap >= 0) & common(key_real)
    if window is not None:
        mask &= gap < window
    if segments is not None and key_segments is not None:
        keys = common(key_segments)
        mask &= (apart(segments) == keys) | (keys == SHARED_SEGMENT)
    return mask


def _rows_of(batch: int, rows: int) -> tuple[int, int]:
    if batch % rows:
        raise ValueError(f"{batch} rows cannot share a part of {rows} rows: not a multiple")
    return rows, batch // rows


def attend(q, parts: Sequence[KeyValues], positions, *, segments=None, window=None, scale=None,
           softcap=None, sinks=None):  # fmt: skip
    """Grouped-query attention over parts; see ``attend_masked``, which takes the masks ready.

    Args:
      q: [B, T, K, R, H].
      parts: what may be seen.
      positions: [B, T] int32, of the queries.
      segments: [B, T] int32 for packed rows.
      window: see ``causal_mask``.
      scale: of the scores; H^-1/2 by default.
      softcap: scores are bent to ± this.
      sinks: [K, R].
    """
    masks = [
        causal_mask(positions, p.positions, p.real, window=window, segments=segments,
                    key_segments=p.segments) for p in parts
    ]  # fmt: skip
    return attend_masked(q, [(p.k, p.v) for p in parts], masks, scale=scale, softcap=softcap,
                         sinks=sinks)  # fmt: skip


def attend_masked(q, parts, masks, *, scale=None, softcap=None, sinks=None):
    """One softmax over all parts; a query that may see nothing gets 0 (B10).

    Args:
      q: [B, T, K, R, H]; query head k·R + r reads key head k: heads are split, not tiled (T20).
      parts: (k [P, K, H, S], v [P, K, S, H]) each, P a divisor of B.
      masks: [P, G, T, S] bool each, True where the query may look.
      scale: of the scores; H^-1/2 by default.
      softcap: scores become softcap · tanh(score / softcap), before the mask (T18).
      sinks: [K, R], a score of each head that takes its share of the softmax and gives nothing
        (T21).

    Returns:
      [B, T, K, R, H], q's dtype; scores and softmax in at least float32.
    """
    batch, length, heads, share, head_dim = q.shape
    kind = jnp.promote_types(q.dtype, jnp.float32)
    scale = head_dim**-0.5 if scale is None else scale
    if serves(q, parts, softcap=softcap, sinks=sinks):
        return fused(q, *parts[0], masks[0], scale=scale)

    def by_row(x):
        """[P, K, R, G, T, ...] → [B, T, K, R, ...]."""
        order = (0, 3, 4, 1, 2, *range(5, x.ndim))
        return x.transpose(order).reshape(batch, length, heads, share, *x.shape[5:])

    def by_part(x, rows):
        """[B, T, K, R, ...] → [P, K, R, G, T, ...]."""
        x = x.reshape(*_rows_of(batch, rows), length, heads, share, *x.shape[4:])
        return x.transpose(0, 3, 4, 1, 2, *range(5, x.ndim))

    scores, tops = [], []
    for (k, _), mask in zip(parts, masks, strict=True):
        s = jnp.einsum("pkrgth,pkhs->pkrgts", by_part(q, k.shape[0]), k.astype(q.dtype),
                       preferred_element_type=kind) * scale  # fmt: skip
        if softcap is not None:
            s = softcap * jnp.tanh(s / softcap)
        s = jnp.where(mask[:, None, None], s, jnp.finfo(kind).min)
        scores.append(s)
        tops.append(by_row(jnp.max(s, axis=-1)))
    top = tops[0]
    for other in tops[1:]:
        top = jnp.maximum(top, other)
    total = jnp.zeros((), kind)
    if sinks is not None:
        sinks = sinks.astype(kind)[None, None]
        top = jnp.maximum(top, sinks)
    # The result does not depend on what is subtracted, so no gradient need flow through it. Where
    # nothing at all is seen 0 is subtracted and every term is exp(least number) = 0: one array of
    # [T, S] fewer to keep for the backward pass than with a second mask.
    top = jax.lax.stop_gradient(jnp.where(top > jnp.finfo(kind).min, top, 0))
    if sinks is not None:
        total = jnp.exp(sinks - top)
    out = None
    for s, (_, v) in zip(scores, parts, strict=True):
        e = jnp.exp(s - by_part(top, v.shape[0])[..., None])
        total = total + by_row(jnp.sum(e, axis=-1))
        read = by_row(jnp.einsum("pkrgts,pksh->pkrgth", e.astype(q.dtype), v.astype(q.dtype),
                                 preferred_element_type=kind))  # fmt: skip
        out = read if out is None else out + read
    total = jnp.where(total > 0, total, jnp.ones((), kind))
    return (out / total[..., None]).astype(q.dtype)
