"""What a caller says of new adapters, looked at before any is drawn: the values, or an error."""

import numbers
import operator
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from gradejax.models.config import DecoderConfig

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


def index(value: Any) -> int | None:
    """A whole number as an int, NumPy's and JAX's too; None for all else. True is a mistake."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def whole(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    found = index(value)
    if found is None or found < 1:
        raise ValueError(f"{name} must be whole, at least 1, got {value!r:.200}")
    return found


def strength(name: str, value: Any) -> float:
    """A number that is no 0, under which nothing would ever be learnt, and that float32 holds."""
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    real = isinstance(plain, numbers.Real) and not isinstance(plain, bool)
    if not real or not 1e-30 <= abs(plain) <= 1e30:  # NaN is in no range
        raise ValueError(
            f"{name} must be a finite number other than 0 (1e-30 to 1e30), got {value!r:.200}"
        )
    return float(plain)


def listed(what: str, values: Any) -> list:
    """Several values in their order as a list, of an array or a generator too."""
    try:
        if not isinstance(values, str | bytes | bytearray | Mapping | Set):
            return list(getattr(values, "tolist", lambda: values)())
    except TypeError:
        pass  # not iterable, or traced
    raise ValueError(f"expected {what}, got {values!r:.200}")


def each(name: str, value: Any, what: str, count: int | None) -> list:
    """One value for each of ``count`` adapters; without a count, as many as are given."""
    if isinstance(value, numbers.Number) or getattr(value, "ndim", None) == 0:
        return [value] * (count or 1)
    values = listed(f"{name} to be {what}, or a list of one for each adapter", value)
    if count is not None and len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries for {count} adapters: {values}")
    return values


def target_sizes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """(in, out) of every matrix of this decoder that can be adapted; experts' cannot."""
    c = config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    sizes = {"q": (c.width, q), "k": (c.width, kv), "v": (c.width, kv), "o": (q, c.width),
             "gate": (c.width, c.mlp_width), "up": (c.width, c.mlp_width),
             "down": (c.mlp_width, c.width)}  # fmt: skip
    left_out = ("gate", "up", "down") if c.experts else () if c.gated else ("gate",)
    return {t: size for t, size in sizes.items() if t not in left_out}


def chosen_targets(config: DecoderConfig, targets: Sequence[str] | None) -> tuple[str, ...]:
    """``targets`` in TARGETS' order (None: all that the decoder has), checked."""
    known = target_sizes(config)
    if isinstance(targets, str):
        targets = [t for t in re.split(r"[,\s]+", targets) if t]
    if isinstance(targets, Set | Mapping):  # the order does not count
        targets = list(targets)
    wanted = list(known) if targets is None else listed("targets to be a list of names", targets)
    if unknown := [t for t in wanted if t not in list(known)]:  # a list has no hash
        raise ValueError(
            f"unknown LoRA target {', '.join(map(repr, unknown))} for {config.family}; choose from "
            f"{', '.join(known)}"
        )
    if not wanted:
        raise ValueError(f"no LoRA target given; choose from {', '.join(known)}")
    return tuple(t for t in TARGETS if t in wanted)


def chosen_layers(
    config: DecoderConfig, layers: Sequence[int] | None, last_n: int | None
) -> tuple[int, ...]:
    """The layers to adapt: those listed, the last ``last_n``, or all; checked."""
    count = config.num_layers
    if layers is not None and last_n is not None:
        raise ValueError("give layers or last_n, not both")
    if last_n is not None:
        last = index(last_n)
        if last is None or not 1 <= last <= count:
            raise ValueError(
                f"last_n must lie in 1 to {count}, the decoder's layers; got {last_n!r:.200}"
            )
        return tuple(range(count - last, count))
    if layers is None:
        return tuple(range(count))
    given = list(layers) if isinstance(layers, Set) else layers  # the order does not count
    given = listed(f"layers to be a list of whole numbers from 0 to {count - 1}", given)
    found = [index(i) for i in given]
    if bad := [v for v, i in zip(given, found, strict=True) if i is None or not 0 <= i < count]:
        raise ValueError(f"no layer {', '.join(map(repr, bad))}; choose from 0 to {count - 1}")
    if not found:
        raise ValueError(f"no layer to adapt; choose from 0 to {count - 1}")
    return tuple(sorted(set(found)))
