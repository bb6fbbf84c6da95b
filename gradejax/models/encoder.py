"""A query encoder made of a decoder's trunk: frozen below, a trainable copy of the last layers.

GRADE (arXiv 2607.10836) trains the last two layers of its encoder. The state below them is
computed once per question and cached, so a training step runs two layers; packed rows hold several
questions, and the last layer is computed at the pooled places alone. Pooling is the last token's
state, the only one that has seen the whole question in a causal trunk [choice].
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.models.attention import token_positions
from gradejax.models.block import Block
from gradejax.models.decoder import Decoder, views
from gradejax.models.layers import make_norm
from gradejax.types import Trunk

TRAINABLE = 2  # layers that the encoder's copy trains


def trainable_layers(model: Decoder) -> tuple[int, ...]:
    """Indices of the trained layers.

    Raises:
      ValueError: the decoder is too shallow.
    """
    depth = model.config.num_layers
    if depth <= TRAINABLE:
        raise ValueError(
            f"the encoder trains a copy of the last {TRAINABLE} layers and caches what is below; "
            f"its model has only {depth}"
        )
    return tuple(range(depth - TRAINABLE, depth))


def top_params(model: Decoder, params):
    """A copy of the trained part of a decoder's tree: its last layers and final norm.

    A copy, because the frozen tree must never change, not even through a donated buffer (D08).
    """
    names = [f"layers_{i}" for i in trainable_layers(model)] + ["norm"]
    return jax.tree.map(jnp.array, {n: params["params"][n] for n in names})


@functools.partial(jax.jit, static_argnames="model")
def _below(model: Decoder, params, tokens, mask):
    positions = token_positions(mask)
    x = model.apply(params, tokens, method="embed")
    layers = tuple(range(trainable_layers(model)[0]))
    return model.apply(params, x, positions, mask, layers, method="blocks")


def states_below(
    model: Decoder, params, questions: Sequence[Sequence[int]], *, batch_size: int = 64
) -> list[np.ndarray]:
    """The cached state of each question, [T_i, E] float32.

    Args:
      model: the trunk.
      params: its frozen tree.
      questions: token ids, at least one each.
      batch_size: questions run at once.

    Raises:
      ValueError: an empty question, or one longer than the trunk's context.
    """
    for i, ids in enumerate(questions):
        if not 0 < len(ids) <= model.config.max_positions:
            raise ValueError(
                f"question {i} has {len(ids)} tokens; the encoder reads 1 to "
                f"{model.config.max_positions}"
            )
    order = sorted(range(len(questions)), key=lambda i: len(questions[i]))
    out: list[np.ndarray] = [np.empty(0)] * len(questions)
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        length = -(-max(len(questions[i]) for i in rows) // 32) * 32
        tokens = np.zeros((batch_size, length), np.int32)
        mask = np.zeros((batch_size, length), bool)
        for r, i in enumerate(rows):
            tokens[r, : len(questions[i])] = questions[i]
            mask[r, : len(questions[i])] = True
        states = np.asarray(_below(model, params, tokens, mask), np.float32)
        for r, i in enumerate(rows):
            out[i] = states[r, : len(questions[i])].copy()
    return out


def encode(config, top, trunk: Trunk):
    """The pooled final state of each question.

    Args:
      config: the trunk's DecoderConfig.
      top: the trained tree, of ``top_params``.
      trunk: packed cached states of Q questions.

    Returns:
      [Q, E], the dtype of ``top``.
    """
    dtype = jax.tree.leaves(top)[0].dtype
    x = trunk.states.astype(dtype)
    layers = range(config.num_layers - TRAINABLE, config.num_layers)
    seen = views(config, layers, trunk.positions, trunk.segments > 0, segments=trunk.segments)
    block = Block(config)
    for i, view in list(zip(layers, seen, strict=True))[:-1]:
        x, _ = block.apply({"params": top[f"layers_{i}"]}, x, *view)
    tables, (mask,) = seen[-1]
    x, _ = block.apply(
        {"params": top[f"layers_{layers[-1]}"]}, x, tables,
        [mask[trunk.row, :, trunk.slot][:, :, None, :]], asked=(trunk.row, trunk.slot),
    )  # fmt: skip
    return make_norm(config).apply({"params": top["norm"]}, x[:, 0])


def pack_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Questions by packed row: first fit, longest first."""
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        r = next((r for r, free in enumerate(room) if free >= lengths[i]), None)
        if r is None:
            rows.append([])
            room.append(row_length)
            r = len(rows) - 1
        rows[r].append(i)
        room[r] -= lengths[i]
    return rows


def pack_trunk(states: Sequence[np.ndarray], rows: int, row_length: int) -> Trunk:
    """Lay the cached states of a batch's questions into ``rows`` packed rows (NumPy).

    Args:
      states: [T_i, E] of each question; one of length 0 (padding) points at row 0, place 0.
      rows: R, at least what ``pack_rows`` needs.
      row_length: L, at least the longest question.
    """
    layout = pack_rows([len(s) for s in states], row_length)
    if len(layout) > rows:
        raise ValueError(f"{len(states)} questions need {len(layout)} packed rows, got {rows}")
    width = states[0].shape[-1]
    count = len(states)
    out = Trunk(
        states=np.zeros((rows, row_length, width), np.float32),
        segments=np.zeros((rows, row_length), np.int32),
        positions=np.zeros((rows, row_length), np.int32),
        row=np.zeros((count,), np.int32),
        slot=np.zeros((count,), np.int32),
    )
    for r, members in enumerate(layout):
        at = 0
        for i in members:
            end = at + len(states[i])
            if end == at:
                continue
            out.states[r, at:end] = states[i]
            out.segments[r, at:end] = i + 1
            out.positions[r, at:end] = np.arange(end - at)
            out.row[i], out.slot[i] = r, end - 1
            at = end
    return out
