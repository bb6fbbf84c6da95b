"""Plain values over a pipe: how the tests and the program speak, and all they can say.

A frame is 4 bytes of length and then JSON; a value is a JSON scalar or a list that starts with the
letter of its type, so that tuples, sets, bytes, complex and large integers arrive as what they
were. Nothing in a frame names a class or code: `unpack` builds None, bool, int, float, complex,
str, bytes, list, tuple, set, frozenset and dict of exactly those types, whatever the sender wrote.
Standard library only: both interpreters of the sandbox load this file without gradejax.
"""

import json
import os
import struct

_HEAD = struct.Struct("!I")
_PLAIN_INT = 1 << 53  # larger ones go as hex: decimal digits are quadratic, and limited in Python
_SEQUENCES = {"l": list, "t": tuple, "s": set, "f": frozenset}


class NotPlain(TypeError):
    """A value that is no plain literal was to be sent."""


class BadFrame(ValueError):
    """The other side sent something that is not a frame of plain values."""


def pack(value) -> object:
    """`value` as JSON-able data. Raises NotPlain for anything but plain values.

    Subclasses of plain types (Counter, a named tuple, an IntEnum) go as their base's content, read
    with the base's own methods; numbers that are equal to an int or a float (a numpy scalar, a
    Fraction of 1/2) as that number.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        value = int.__pos__(value)
        return value if -_PLAIN_INT < value < _PLAIN_INT else ["i", hex(value)]
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, complex):
        value = complex.__pos__(value)
        return ["c", value.real, value.imag]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).hex()]
    if isinstance(value, dict):
        return ["d", *(pack(part) for item in dict.items(value) for part in item)]
    for letter, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return [letter, *map(pack, kind.__iter__(value))]
    if hasattr(type(value), "__index__"):
        return pack(int(value))
    if hasattr(type(value), "__float__") and float(value) == value:
        return pack(float(value))
    raise NotPlain(
        f"expected plain values (numbers, strings, lists, tuples, dicts, sets, bytes, None), "
        f"got {type(value).__name__}"
    )


def unpack(data):
    """The value that `pack` wrote as `data`. Raises BadFrame when no `pack` can have written it."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise BadFrame("a bare JSON object is no value")
        return data
    letter, *rest = data or [None]
    try:
        if letter == "i":
            return int(rest[0], 16)
        if letter == "c":
            real, imaginary = rest
            return complex(real, imaginary)
        if letter == "b":
            return bytes.fromhex(rest[0])
        if letter == "d":
            parts = [unpack(part) for part in rest]
            return dict(zip(parts[::2], parts[1::2], strict=True))
        return _SEQUENCES[letter](unpack(part) for part in rest)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadFrame(f"no plain value: {error}") from None


def write_frame(fd: int, message: object) -> None:
    """Writes JSON-able `message` (see `pack`) to `fd`. Raises OSError when the reader is gone."""
    body = json.dumps(message).encode("ascii")
    view = memoryview(_HEAD.pack(len(body)) + body)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int, limit: int) -> object:
    """The next message on `fd`. Raises EOFError at the end, BadFrame when over `limit` bytes."""
    (length,) = _HEAD.unpack(_read(fd, _HEAD.size))
    if length > limit:
        raise BadFrame(f"a message of {length} bytes is over the limit of {limit}")
    try:
        return json.loads(_read(fd, length))
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from None


def _read(fd: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(fd, min(length, 1 << 16))
        if not part:
            raise EOFError("the pipe was closed")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
