"""Low-rank adapters of a frozen decoder, several of them in one batch (arXiv:2106.09685).

The n adapters of one backbone are stacked, A [n, in, r] and B [n, r, out], and every row of a batch
says how much of each it wants by weights w [B, n]:

    delta = ((x·A_cat) ⊙ repeat(w · scale, r)) · B_cat,   A_cat [in, n·r], B_cat [n·r, out]

One-hot w: the row uses that adapter. Several nonzero: a mixture of outputs. All zero: the frozen
base. A row never depends on its neighbours' adapters, and an adapter that no row weighs gets
gradients of exactly 0. Adapters of lower rank are filled up with zeros in A *and* B: such places
add nothing and get no gradient (each factor's gradient carries the other), so they stay zero.

Letters: B rows, T tokens, n adapters, r rank, E width, F mlp width, N query heads, K key heads,
R = N/K, H head_dim.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from gradejax.models.config import DecoderConfig
from gradejax.models.lora_arguments import (
    TARGETS,
    chosen_layers,
    chosen_targets,
    each,
    index,
    listed,
    strength,
    target_sizes,
    whole,
)
from gradejax.models.quantize import product

INITS = ("kaiming", "normal")


@flax.struct.dataclass
class Lora:
    """n adapters and how much of each the rows of a batch want.

    Train ``tree`` (and ``weights``, of a learned mixture) alone: ``scale`` is data that goes with
    the adapters, and the base is not in here at all, so that no optimiser can move it (fault D07).
    Pass it to jitted functions as an argument; closed over, it would be a constant (fault D09).

    Attributes:
      tree: {"layers_3": {"q": {"a": [n, in, r], "b": [n, r, out]}}}; r may differ between entries.
        A layer or target that is left out is not adapted and costs nothing.
      weights: [B, n] float, or None before it is said which rows want what.
      scale: [n] float32, alpha/r of each adapter (alpha/sqrt(r) of rank-stabilised ones).
    """

    tree: Mapping[str, Any]
    weights: jax.Array | None
    scale: jax.Array

    @property
    def count(self) -> int:
        return self.scale.shape[0]

    def for_rows(self, adapters: Sequence[int]) -> "Lora":
        """These adapters with row b using ``adapters[b]``; -1 is the frozen base.

        Raises:
          ValueError: an index that is no adapter, or no whole number: [0.5] would be the base.
        """
        names = (
            f"rows to name adapters 0 to {self.count - 1}, or -1 for the base, by whole numbers in "
            "one list"
        )
        found = [index(i) for i in listed(names, adapters)]
        if not found or any(i is None or not -1 <= i < self.count for i in found):
            raise ValueError(f"expected {names}, got {adapters!r:.200}")
        return self.replace(weights=jax.nn.one_hot(jnp.asarray(found), self.count))

    def entry(self, layer: int) -> Mapping[str, Any]:
        """What adapts this layer, by target; empty when nothing does."""
        return self.tree.get(f"layers_{layer}", {})

    def copy(self) -> "Lora":
        """The same values in buffers of their own: a reference policy must outlive donation and
        not follow the trained adapters (fault D08)."""
        return jax.tree.map(jnp.copy, self)


def init_lora(
    config: DecoderConfig,
    rng: jax.Array,
    ranks: int | Sequence[int],
    *,
    n: int | None = None,
    targets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    last_n: int | None = None,
    alpha: float | Sequence[float] | None = None,
    rank_stabilised: bool = False,
    init: str = "kaiming",
    dtype=jnp.float32,
) -> Lora:
    """Adapters that change nothing yet: A random, B zero, so the start is exactly the base.

    Args:
      config: of the decoder they are for.
      rng: key; adapter, layer and target each draw their own, so that adding one changes no other.
      ranks: one rank for all adapters, or one for each.
      n: number of adapters; needed when ``ranks`` is one number and there is more than one.
      targets: names from TARGETS, None for all that the decoder has.
      layers: layers to adapt, counted from 0; None for all.
      last_n: in place of ``layers``: only the last so many.
      alpha: strength, one or one per adapter; None takes each one's rank (a scale of 1, or sqrt(r)
        when rank-stabilised). It is divided by the rank here, so give alpha itself (T14).
      rank_stabilised: scale is alpha/sqrt(r) in place of alpha/r (arXiv:2312.03732).
      init: of A: 'kaiming', uniform in ±1/sqrt(in) as PEFT draws it, or 'normal', N(0, 0.02²).
      dtype: of A and B.

    Raises:
      ValueError: an unknown target, layer or init, a rank that is no whole number of at least 1,
        an alpha that is not finite or 0, lists of different lengths.
    """
    count = None if n is None else whole("n", n)
    ranks = [whole("ranks", r) for r in each("ranks", ranks, "a whole number", count)]
    count = len(ranks)
    if not count:
        raise ValueError("at least one adapter is needed, got no ranks")
    if init not in INITS:
        raise ValueError(f"unknown init {init!r}; choose from {', '.join(INITS)}")
    alphas = ranks if alpha is None else each("alpha", alpha, "a number", count)
    alphas = [strength("alpha", a) for a in alphas]
    if not isinstance(rank_stabilised, bool | np.bool_):
        raise ValueError(f"rank_stabilised must be true or false, got {rank_stabilised!r:.200}")
    if not jnp.issubdtype(dtype, jnp.floating):  # an integer A would be all zeros
        raise ValueError(f"dtype of adapters must be a float type, got {dtype!r:.200}")
    sizes, largest = target_sizes(config), max(ranks)
    names = chosen_targets(config, targets)

    def factors(layer: int, target: str):
        wide, out = sizes[target]
        a = []
        for i, rank in enumerate(ranks):
            key = jax.random.fold_in(jax.random.fold_in(rng, i), layer)
            key = jax.random.fold_in(key, TARGETS.index(target))
            if init == "kaiming":  # kaiming_uniform(a=sqrt(5)) of an (r, in) matrix
                drawn = jax.random.uniform(key, (wide, rank), jnp.float32, -1.0, 1.0) * wide**-0.5
            else:
                drawn = 0.02 * jax.random.normal(key, (wide, rank), jnp.float32)
            a.append(jnp.pad(drawn, ((0, 0), (0, largest - rank))))
        return {"a": jnp.stack(a).astype(dtype), "b": jnp.zeros((count, largest, out), dtype)}

    return Lora(
        tree={f"layers_{i}": {t: factors(i, t) for t in names}
              for i in chosen_layers(config, layers, last_n)},
        weights=None,
        scale=scales(ranks, alphas, rank_stabilised),
    )  # fmt: skip


def scales(ranks, alphas, rank_stabilised: bool = False) -> jax.Array:
    """alpha/r, or alpha/sqrt(r), of each adapter, [n] float32."""
    ranks = np.asarray(ranks, np.float64)
    below = np.sqrt(ranks) if rank_stabilised else ranks
    return jnp.asarray(np.asarray(alphas, np.float64) / below, jnp.float32)


def lora_delta(x, entry, weights, scale):
    """What the adapters add to one product; see ``lora_deltas``."""
    return lora_deltas(x, {"": entry}, weights, scale)[""]


def lora_deltas(x, entries: Mapping[str, Any], weights, scale) -> dict[str, jax.Array]:
    """What the adapters add to products of one input: one product with all their A together.

    Args:
      x: [B, T, in], the products' input.
      entries: target → {"a": [n, in, r], "b": [n, r, out]}, or packed [n·r, in] and [out, n·r]
        (``packed``); ranks may differ.
      weights: [B, n].
      scale: [n]; no gradient reaches it.

    Returns:
      target → [B, T, out] of x's dtype. The factors are cast to it; the gain is taken in float32
      before.
    """
    if not entries:
        return {}
    count = scale.shape[0]
    if weights is None:
        raise ValueError("this Lora does not say which rows use it; see Lora.for_rows or weights=")
    if weights.shape != (x.shape[0], count):
        raise ValueError(
            f"LoRA weights must be [rows, adapters] = {(x.shape[0], count)}, got {weights.shape}"
        )
    pairs = {t: (e["a"], e["b"]) for t, e in entries.items()}
    pairs = {t: _flat(*ab) if ab[0].ndim == 3 else ab for t, ab in pairs.items()}
    gain = weights.astype(jnp.float32) * jax.lax.stop_gradient(scale)[None, :]
    low, start, out = product(x, jnp.concatenate([a for a, _ in pairs.values()])), 0, {}
    for target, (a, b) in pairs.items():
        end = start + len(a)
        share = jnp.repeat(gain, len(a) // count, axis=1)[:, None, :].astype(x.dtype)
        out[target] = product(low[..., start:end] * share, b)
        start = end
    return out


def _flat(a, b):
    """[n, in, r] and [n, r, out] → [n·r, in] and [out, n·r], as ``product`` wants them."""
    count, wide, rank = a.shape
    return (a.swapaxes(1, 2).reshape(count * rank, wide),
            b.reshape(count * rank, b.shape[-1]).T)  # fmt: skip


def packed(lora: Lora) -> Lora:
    """The same adapters with A_cat and B_cat laid out once, for loops that use them many times.

    What is packed already stays as it is. ``lora_deltas`` takes both forms; ``merge``, ``stack``
    and the PEFT files want the unpacked one.
    """

    def of(entry):
        a, b = entry["a"], entry["b"]
        a, b = _flat(a, b) if a.ndim == 3 else (a, b)
        return {"a": a, "b": b}

    return lora.replace(tree={
        layer: {t: of(e) for t, e in entries.items()} for layer, entries in lora.tree.items()
    })  # fmt: skip


def check_unpacked(lora: Lora) -> None:
    """Raises: ValueError for adapters laid out by ``packed``."""
    if any(e["a"].ndim != 3 for entries in lora.tree.values() for e in entries.values()):
        raise ValueError(
            "expected adapters A [n, in, r] and B [n, r, out]; these are packed for a loop, use "
            "those they were packed from"
        )


def stack(loras: Sequence[Lora]) -> Lora:
    """Adapters of several ``Lora`` in one, in order; ranks, targets and layers may differ.

    Where an adapter lacks a target or layer it gets zeros in A and B, which stay zero under
    training. Which rows want what is to be said anew.
    """
    if not loras:
        raise ValueError("no adapters to stack")
    for lora in loras:
        check_unpacked(lora)
    where = {(layer, t) for x in loras for layer, entries in x.tree.items() for t in entries}
    tree: dict[str, dict[str, Any]] = {}
    for layer, target in sorted(where, key=lambda w: (int(w[0][7:]), TARGETS.index(w[1]))):
        found = [x.tree.get(layer, {}).get(target) for x in loras]
        some = next(e for e in found if e is not None)
        ins, outs = some["a"].shape[1], some["b"].shape[2]
        rank = max(e["a"].shape[2] for e in found if e is not None)
        kind = jnp.result_type(*[e["a"].dtype for e in found if e is not None])
        a, b = [], []
        for lora, e in zip(loras, found, strict=True):
            if e is None:
                e = {"a": jnp.zeros((lora.count, ins, 0)), "b": jnp.zeros((lora.count, 0, outs))}
            if e["a"].shape[1] != ins or e["b"].shape[2] != outs:
                raise ValueError(
                    f"adapters of different models: {layer}/{target} is {ins}→{outs} in one and "
                    f"{e['a'].shape[1]}→{e['b'].shape[2]} in another"
                )
            short = rank - e["a"].shape[2]
            a.append(jnp.pad(e["a"].astype(kind), ((0, 0), (0, 0), (0, short))))
            b.append(jnp.pad(e["b"].astype(kind), ((0, 0), (0, short), (0, 0))))
        tree.setdefault(layer, {})[target] = {"a": jnp.concatenate(a), "b": jnp.concatenate(b)}
    return Lora(tree=tree, weights=None, scale=jnp.concatenate([x.scale for x in loras]))
