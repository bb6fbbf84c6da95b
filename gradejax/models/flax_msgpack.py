"""Reading ``flax_model.msgpack`` as Hugging Face's own Flax classes wrote it, one array at a time.

The file is one msgpack map of maps; an array is an extension of type 1 that holds (shape, dtype,
bytes), or, past a gigabyte, a map of such pieces (flax.serialization). Only the structure is walked
here, so that no array is in memory before it is asked for. Names and axes become torch's: a Flax
kernel is the transpose of torch's weight, also of gpt2's Conv1D, whose Flax class keeps (out, in)
(fault D02); ``embedding`` and ``scale`` are torch's ``weight``.
"""

import math
import mmap
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from gradejax.models.lazy import LazyTensor

_ARRAY = 1  # flax's extension type
_EXT = {0xC7: 1, 0xC8: 2, 0xC9: 4}  # first byte → bytes of the length
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_BIN = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_CHUNKED = "__msgpack_chunked_array__"
_HEADER = 256  # bytes that surely hold an array's shape and dtype


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class _Piece:
    """Where an array's bytes are."""

    def __init__(self, path: pathlib.Path, data: mmap.mmap, start: int, stop: int):
        reader = msgpack.Unpacker(raw=False)
        reader.feed(data[start : min(start + _HEADER, stop)])
        if reader.read_array_header() != 3:
            raise ValueError("an array is not (shape, dtype, bytes)")
        self.shape = tuple(int(n) for n in reader.unpack())
        self.dtype = _dtype(reader.unpack())
        at = start + reader.tell()
        if (width := _BIN.get(data[at])) is None:
            raise ValueError("an array holds no bytes")
        size = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        self._path, self._start = path, at + 1 + width
        if size != math.prod(self.shape) * self.dtype.itemsize or self._start + size != stop:
            raise ValueError(f"an array of shape {self.shape} has {size} bytes")

    def elements(self, start: int, stop: int) -> np.ndarray:
        """Elements of the flattened array, [stop - start].

        Read, not mapped: mapped pages would stay in memory as long as the file is open.
        """
        at = self._start + start * self.dtype.itemsize
        return np.fromfile(self._path, self.dtype, stop - start, offset=at)


class _Walk:
    """Yields (path, LazyTensor as stored) of every array in the file."""

    def __init__(self, path: pathlib.Path, data: mmap.mmap):
        self._path, self._data, self._at = path, data, 0

    def arrays(self) -> Iterator[tuple[tuple[str, ...], LazyTensor]]:
        yield from self._value(())
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow the tree")

    def _small(self) -> Any:
        """A value that holds no array."""
        reader = msgpack.Unpacker(raw=False)
        reader.feed(self._data[self._at : self._at + 4096])
        value = reader.unpack()
        self._at += reader.tell()
        return value

    def _map(self) -> int | None:
        """Number of entries when a map begins here, and step into it."""
        first = self._data[self._at]
        if 0x80 <= first <= 0x8F:
            self._at += 1
            return first & 0x0F
        if first in (0xDE, 0xDF):
            width = 2 if first == 0xDE else 4
            count = int.from_bytes(self._data[self._at + 1 : self._at + 1 + width], "big")
            self._at += 1 + width
            return count
        return None

    def _piece(self) -> _Piece | None:
        """The array that begins here, and step behind it."""
        first = self._data[self._at]
        if first in _FIXED_EXT:
            size, body = _FIXED_EXT[first], self._at + 2
        elif first in _EXT:
            width = _EXT[first]
            size = int.from_bytes(self._data[self._at + 1 : self._at + 1 + width], "big")
            body = self._at + 2 + width
        else:
            return None
        if self._data[body - 1] != _ARRAY:
            raise ValueError(f"an extension of type {self._data[body - 1]} is no array")
        if body + size > len(self._data):
            raise ValueError("the file ends within an array")
        self._at = body + size
        return _Piece(self._path, self._data, body, body + size)

    def _value(self, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], LazyTensor]]:
        if (piece := self._piece()) is not None:
            yield path, _whole(piece.shape, [piece])
            return
        if (count := self._map()) is None:
            raise ValueError(f"{'.'.join(path) or 'the root'} is neither a map nor an array")
        for i in range(count):
            key = self._small()
            if i == 0 and key == _CHUNKED:
                yield path, self._chunks(count)
                return
            yield from self._value((*path, str(key)))

    def _chunks(self, count: int) -> LazyTensor:
        """An array in pieces: {_CHUNKED: True, "shape": {"0": n, ...}, "chunks": {"0": array}}."""
        self._small()
        shape: tuple[int, ...] = ()
        pieces: list[_Piece] = []
        for _ in range(count - 1):
            key = self._small()
            if key == "shape":
                sizes = self._small()
                shape = tuple(int(sizes[str(i)]) for i in range(len(sizes)))
            elif key == "chunks":
                found = {}
                for _ in range(self._map() or 0):
                    at = self._small()
                    found[int(at)] = self._piece()
                pieces = [found[i] for i in range(len(found))]
            else:
                raise ValueError(f"an array in pieces has an entry {key!r}")
        if sum(math.prod(p.shape) for p in pieces) != math.prod(shape):
            raise ValueError(f"the pieces of an array do not fill its shape {shape}")
        return _whole(shape, pieces)


def _whole(shape: tuple[int, ...], pieces: list[_Piece]) -> LazyTensor:
    if not shape:
        raise ValueError("a number stands where an array should")
    row = math.prod(shape[1:])

    def read(start, stop):
        out, at = [], 0
        for piece in pieces:
            size = math.prod(piece.shape)
            low, high = max(start * row - at, 0), min(stop * row - at, size)
            if low < high:
                out.append(piece.elements(low, high))
            at += size
        flat = out[0] if len(out) == 1 else np.concatenate(out or [np.empty(0, np.float32)])
        return flat.reshape(stop - start, *shape[1:])

    return LazyTensor(shape, read)


def read_flax_msgpack(path: str | pathlib.Path) -> dict[str, LazyTensor]:
    """The arrays of a file under torch's names and in torch's layout.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a torn or foreign file, or two arrays that torch calls the same.
    """
    path = pathlib.Path(path)
    found: dict[str, LazyTensor] = {}
    leaves: dict[str, str] = {}
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            flat = list(_Walk(path, data).arrays())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    # Whatever a foreign or cut file makes the walk stumble over; msgpack's errors share no base.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
            RecursionError, msgpack.exceptions.UnpackException) as error:  # fmt: skip
        raise ValueError(f"{path} is torn or not a Flax checkpoint ({error!r})") from error
    if flat and all(place[:1] == ("params",) for place, _ in flat):
        flat = [(place[1:], tensor) for place, tensor in flat]
    for place, tensor in flat:
        *stem, leaf = place
        torchs = "weight" if leaf in ("kernel", "embedding", "scale") else leaf
        name = ".".join([*stem, torchs])
        if name in found:
            raise ValueError(
                f"tensor {name!r} stands in {path} twice, as {leaves[name]!r} and as {leaf!r}"
            )
        matrix = leaf == "kernel" and len(tensor.shape) == 2
        found[name], leaves[name] = (tensor.transposed() if matrix else tensor), leaf
    return found
