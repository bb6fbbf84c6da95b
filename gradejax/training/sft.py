"""Supervised training of a small language model: cross-entropy of replies, packed rows.

Batches are a function of (seed, step), the state holds everything else, so a run that was killed
and resumed ends with the same parameters as an unbroken one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradejax import ops
from gradejax.models.decoder import SHARED_SEGMENT, Decoder
from gradejax.training.checkpoint import Checkpoints


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Attributes:

    steps: optimiser steps.
    rows: packed rows of a batch.
    length: tokens of a packed row.
    learning_rate: peak of a linear warm-up and cosine decay to a twentieth.
    warmup: steps of warm-up.
    weight_decay: decoupled, on matrices only.
    clip: global gradient norm.
    optimizer: "adamw", or "muon" (matrices by Muon, the rest by Adam).
    seed: of the initial weights and of the order of rows.
    """

    steps: int = 3000
    rows: int = 32
    length: int = 256
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.05
    clip: float = 1.0
    optimizer: str = "adamw"
    seed: int = 0


@flax.struct.dataclass
class Packed:
    """Rows of several samples each.

    tokens [N, L] int32; learn [N, L] bool, tokens whose prediction is trained (replies, their end
    token included); segments [N, L] int32, 0 is padding and SHARED_SEGMENT what all samples begin
    with; positions [N, L] int32, counted in each sample as if it stood alone.
    """

    tokens: Any
    learn: Any
    segments: Any
    positions: Any


def common_prefix(samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """The longest run of ids that every prompt begins with (a system prompt, as a rule).

    Each prompt keeps at least its last token to itself: the first token of its reply is predicted
    from there, within the sample's own segment (fault B02).
    """
    first = list(samples[0][0])
    length = max(len(first) - 1, 0)
    for prompt, _ in samples:
        length = min(length, max(len(prompt) - 1, 0))
        while first[:length] != list(prompt[:length]):
            length -= 1
    return first[:length]


def pack(samples: Sequence[tuple[Sequence[int], Sequence[int]]], length: int) -> Packed:
    """Lay (prompt ids, reply ids) samples end to end into rows, each whole in one row.

    What all prompts begin with stands once at the head of each row, where every sample sees it: a
    causal model's states there do not depend on what follows, so this changes no prediction and
    saves the repeats.

    Args:
      samples: prompts and replies as token ids.
      length: tokens of a row.

    Raises:
      ValueError: a sample longer than a row; it names the sample and its length.
    """
    prefix = common_prefix(samples)
    skip = len(prefix)
    rows: list[list[int]] = []
    room: list[int] = []
    for i, (prompt, reply) in enumerate(samples):
        need = len(prompt) + len(reply) - skip
        if need + skip > length:
            raise ValueError(f"sample {i} has {need + skip} tokens, more than a row's {length}")
        # First fit over the last rows: order stays near the given one, little is wasted.
        recent = range(max(0, len(rows) - 24), len(rows))
        row = next((r for r in recent if room[r] >= need), None)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(length - skip)
        rows[row].append(i)
        room[row] -= need
    out = Packed(*(np.zeros((len(rows), length), t) for t in (np.int32, bool, np.int32, np.int32)))
    for r, members in enumerate(rows):
        out.tokens[r, :skip] = prefix
        out.segments[r, :skip] = SHARED_SEGMENT
        out.positions[r, :skip] = np.arange(skip)
        at = skip
        for segment, i in enumerate(members, 1):
            prompt, reply = samples[i]
            end = at + len(prompt) + len(reply) - skip
            out.tokens[r, at:end] = [*prompt[skip:], *reply]
            out.learn[r, end - len(reply) : end] = True
            out.segments[r, at:end] = segment
            out.positions[r, at:end] = skip + np.arange(end - at)
            at = end
    return out


def sft_loss(model: Decoder, params, batch: Packed):
    """Sum of the replies' token cross-entropies and their count (divided once, by the caller).

    The logit at t - 1 scores the token at t, within a segment: the mask is shifted with the
    targets (fault B02).
    """
    hidden = model.apply(
        params, batch.tokens, batch.segments != 0, positions=batch.positions,
        segments=batch.segments, method="hidden",
    )  # fmt: skip
    logits = model.apply(params, hidden[:, :-1], method="logits")
    learn = batch.learn[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    logprobs = ops.token_logprobs(logits, batch.tokens[:, 1:])
    right = (jnp.argmax(logits, -1) == batch.tokens[:, 1:]) & learn
    return -ops.masked_sum(logprobs, learn), (jnp.sum(learn), jnp.sum(right))


@flax.struct.dataclass
class SFTState:
    """params, optimizer state and steps done (int32)."""

    params: Any
    opt_state: Any
    step: Any


def split_fused(params):
    """The tree with q, k and v of each fused kernel and bias as leaves of their own.

    Muon makes each matrix orthogonal; a fused one would be another matrix. (gate and up need no
    split: their axis is none of the two that Muon joins.)
    """

    def of(tree):
        if not isinstance(tree, Mapping):
            return tree
        return {k: _split_qkv(v) if k == "qkv" else of(v) for k, v in tree.items()}

    return of(params)


def _split_qkv(leaves):
    take = lambda part: {n: x[:, part] for n, x in leaves.items()}  # noqa: E731
    return {"q": take(slice(None, -2)), "k": take(slice(-2, -1)), "v": take(slice(-1, None))}


def fuse_split(params):
    """Inverse of ``split_fused``."""

    def of(tree):
        if not isinstance(tree, Mapping):
            return tree
        return {k: _fuse_qkv(v) if k == "qkv" else of(v) for k, v in tree.items()}

    return of(params)


def _fuse_qkv(parts):
    return {n: jnp.concatenate([parts[p][n] for p in "qkv"], axis=1) for n in parts["q"]}


def over_split(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """``rule`` on the split tree, for trees that are fused."""

    def update(grads, state, params=None):
        params = None if params is None else split_fused(params)
        updates, state = rule.update(split_fused(grads), state, params)
        return fuse_split(updates), state

    return optax.GradientTransformation(lambda params: rule.init(split_fused(params)), update)


def _muon_axes(params):
    """Which axes of each kernel are its input and output; None (Adam) for all other leaves.

    Kernels of the split tree: q, k, v [K, R, H, E], o [E, K, R, H], gate_up [2, F, E] (two matrices
    one after the other), others [out, in].
    """
    axes = optax.contrib.MuonDimensionNumbers

    def of(path, leaf):
        names = [p.key for p in path]
        if names[-1] != "kernel" or "head" in names:
            return None
        return {"o": axes((1, 2, 3), 0), "gate_up": axes(2, 1)}.get(
            names[-2], axes(leaf.ndim - 1, tuple(range(leaf.ndim - 1)))
        )

    return jax.tree_util.tree_map_with_path(of, params)


def _matrices(params):
    """True for kernels and embeddings, the leaves that decay."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )


def make_optimizer(config: SFTConfig) -> optax.GradientTransformation:
    """Warm-up, cosine decay, clipping; raises ValueError for an unknown optimizer."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup, config.steps, config.learning_rate / 20
    )
    if config.optimizer == "adamw":
        rule = optax.adamw(schedule, b2=0.98, weight_decay=config.weight_decay,
                           mask=_matrices)  # fmt: skip
    elif config.optimizer == "muon":
        rule = over_split(optax.contrib.muon(
            schedule, adam_b2=0.98, weight_decay=config.weight_decay, consistent_rms=0.2,
            muon_weight_dimension_numbers=_muon_axes,
        ))  # fmt: skip
    else:
        raise ValueError(f"unknown optimizer {config.optimizer!r}; choose from 'adamw', 'muon'")
    return optax.chain(optax.clip_by_global_norm(config.clip), rule)


def sft_step(model: Decoder, optimizer, state: SFTState, batch: Packed):
    """One optimiser step; returns (state, {loss, token_accuracy, grad_norm})."""

    def mean_loss(params):
        total, (count, right) = sft_loss(model, params, batch)
        count = jnp.maximum(count, 1)
        return total / count, right / count

    (loss, accuracy), grads = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    state = SFTState(optax.apply_updates(state.params, updates), opt_state, state.step + 1)
    return state, {"loss": loss, "token_accuracy": accuracy, "grad_norm": optax.global_norm(grads)}


def batch_rows(num_rows: int, config: SFTConfig, step: int) -> np.ndarray:
    """Rows of a step's batch: each epoch a fresh order, a function of (seed, step) alone."""
    if num_rows < config.rows:
        raise ValueError(f"{num_rows} packed rows are fewer than a batch of {config.rows}")
    per_epoch = num_rows // config.rows
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng((config.seed, epoch)).permutation(num_rows)
    return order[place * config.rows : (place + 1) * config.rows]


def train_sft(
    model: Decoder, data: Packed, config: SFTConfig, folder: str, *, save_every: int = 500,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
):  # fmt: skip
    """Train from scratch, or go on from the newest checkpoint under ``folder``.

    Args:
      model: the decoder.
      data: packed rows.
      config: see SFTConfig.
      folder: checkpoints lie here.
      save_every: steps between checkpoints.
      on_step: called with (steps done, metrics) every 50 steps.

    Returns:
      The trained parameters.

    Raises:
      FloatingPointError: the loss is not finite; the last good checkpoint stays.
    """
    optimizer = make_optimizer(config)

    def fresh():
        tokens = jnp.zeros((1, 2), jnp.int32)
        params = model.init(jax.random.key(config.seed), tokens)
        return SFTState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    checkpoints = Checkpoints(folder, keep=1)
    try:
        state = jax.jit(fresh)()
        if checkpoints.latest_step() is not None:
            state = checkpoints.restore(state)
        step_fn = jax.jit(lambda s, b: sft_step(model, optimizer, s, b), donate_argnums=0)
        for step in range(int(state.step), config.steps):
            rows = batch_rows(data.tokens.shape[0], config, step)
            batch = jax.tree.map(lambda x, rows=rows: x[rows], data)
            state, metrics = step_fn(state, batch)
            done = step + 1
            last = done == config.steps
            log, save = done % 50 == 0 or last, done % save_every == 0 or last
            if log or save:
                metrics = {k: float(v) for k, v in metrics.items()}
                # The gradient too: the loss was taken before this step's update.
                if not np.isfinite([metrics["loss"], metrics["grad_norm"]]).all():
                    raise FloatingPointError(
                        f"loss is {metrics['loss']}, gradient norm {metrics['grad_norm']} at step "
                        f"{done}; the newest good checkpoint is step {checkpoints.latest_step()}"
                    )
            if log and on_step is not None:
                on_step(done, metrics)
            if save:
                checkpoints.save(done, state)
        return state.params
    finally:
        checkpoints.close()
