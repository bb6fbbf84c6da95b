"""What a caller gives is looked at before anything runs: the value as it is used, or an error.

Each raises a ValueError that says what was expected and what was given.
"""

import numbers
import operator
import sys
from collections.abc import Collection, Mapping, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

SEEDS = 2**32  # seeds are 32 bits
IDS = 2**31  # ids are int32


def _index(value: Any) -> int | None:
    """A whole number as an int, or None; True is an index, and as a count or id a mistake."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def whole(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """A whole number of at least ``low`` and at most ``high``; NumPy's are such too."""
    found = _index(value)
    if found is None or found < low or (high is not None and found > high):
        span = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {span}, got {value!r:.200}")
    return found


def number(
    name: str, value: Any, span: str, low: float, high: float = sys.float_info.max, *,
    above: bool = False,
) -> float:  # fmt: skip
    """A number of at least (or ``above``) ``low`` and at most ``high``.

    Args:
      name: what it is called.
      value: what was given.
      span: says in words what fits.
      low, high: its ends, both finite.
      above: whether ``low`` itself is out.
    """
    plain = value
    if getattr(value, "ndim", None) == 0 and jnp.issubdtype(value.dtype, jnp.number):
        plain = np.asarray(value)[()].item()  # half precision is no Real, and float32 has its ends
    real = isinstance(plain, numbers.Real) and not isinstance(plain, bool)
    # NaN fits between no ends.
    if not (real and low <= plain <= high) or (above and plain == low):
        raise ValueError(f"{name} must be {span}, got {value!r:.200}")
    return plain if type(plain) in (int, float) else float(plain)


def one_of(name: str, value: Any, choices: Collection[str | None]) -> str | None:
    """One of the choices."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ValueError(
            f"unknown {name} {value!r:.200}; choose from {', '.join(map(str, choices))}"
        )
    return value


def text(name: str, value: Any) -> str:
    """A text that UTF-8 can hold; a tokenizer cannot read half of a surrogate pair."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r:.200}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds the lone surrogate U+{ord(value[error.start]):04X} at place "
            f"{error.start}, which is no character; was it decoded with another encoding?"
        ) from None
    return value


def listed(what: str, values: Any) -> list:
    """Several values in their order, as a list: no single text, mapping or set."""
    try:
        if not isinstance(values, str | bytes | bytearray | Mapping | Set):
            return list(values)
    except TypeError:
        pass  # not iterable
    raise ValueError(f"expected {what}, got {values!r:.200}")


def token_ids(
    name: str, ids: Any, rows: int | None = None, what: str = "token ids (whole numbers)"
) -> list[int]:  # fmt: skip
    """Whole numbers, of [0, rows) where that is given, as a list of ints; it may be empty.

    Half a token or a truth value is no id, though an array of int32 would take it as one.
    """
    found = listed(f"{name} to be a list of {what}", getattr(ids, "tolist", lambda: ids)())
    if {*map(type, found)} - {int}:
        for i in found:
            if _index(i) is None:
                raise ValueError(f"{name} must be {what}, got {i!r:.200}")
        found = [operator.index(i) for i in found]
    if rows is not None and found and not 0 <= min(found) <= max(found) < rows:
        raise ValueError(
            f"{name} must be {what} from 0 to {rows - 1}, got {min(found)} to {max(found)}"
        )
    return found


def stop_tokens(ids: Any, rows: int = IDS) -> tuple[int, ...]:
    """Ids that end a reply, each once; a set of them will do."""
    return tuple(sorted({*token_ids("stop_ids", list(ids) if isinstance(ids, Set) else ids, rows)}))
