"""A stored tensor that is read when it is asked for, whole or by stretches.

Every weight format (safetensors, Flax msgpack, GGUF) is offered as a mapping from Hugging Face
names, in torch's layout, to these; so one strict filler serves them all, and the host holds the
model once and a stretch besides.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

STRETCH = 8 * 2**20  # bytes, as float32, that are read at once
_ALIGN = 64  # what jax's CPU backend asks for to take an array over without a copy


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """A tensor on disk.

    Attributes:
      shape: in torch's layout.
      read: (start, stop) → that stretch of ``axis``, all of the others.
      axis: the one along which a stretch lies together on disk: 0, or 1 of a matrix that is stored
        the other way round.
    """

    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]
    axis: int = 0

    def __call__(self) -> np.ndarray:
        """All of it, [*shape]."""
        return self.read(0, self.shape[self.axis])

    def pieces(self) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
        """(index, what stands there) of stretches that together are the tensor."""
        count = self.shape[self.axis]
        step = max(1, STRETCH // max(1, 4 * math.prod(self.shape) // max(1, count)))
        for start in range(0, count, step):
            stop = min(start + step, count)
            yield (*(slice(None),) * self.axis, slice(start, stop)), self.read(start, stop)

    def transposed(self) -> "LazyTensor":
        """The matrix with its two axes swapped."""
        return LazyTensor(
            self.shape[::-1], lambda start, stop: self.read(start, stop).T, 1 - self.axis
        )

    def minus(self, value: float) -> "LazyTensor":
        """Each element less a number, in float32."""
        return dataclasses.replace(
            self, read=lambda start, stop: self.read(start, stop).astype(np.float32)
            - np.float32(value),
        )  # fmt: skip

    def reordered(self, order: np.ndarray) -> "LazyTensor":
        """Row i is row ``order[i]`` of what is stored; a stretch reads only what spans it."""
        if self.axis:
            raise ValueError("only rows that lie together on disk can be reordered")

        def read(start, stop):
            wanted = order[start:stop]
            if not wanted.size:
                return self.read(0, 0)
            low = int(wanted.min())
            return self.read(low, int(wanted.max()) + 1)[wanted - low]

        return LazyTensor(self.shape, read)


def empty(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array, not yet filled, that ``to_device`` can hand over without a copy."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGN, np.uint8)
    begin = -raw.ctypes.data % _ALIGN
    return raw[begin : begin + size].view(dtype).reshape(shape)


def to_device(array: np.ndarray) -> jax.Array:
    """The array on the default device. The CPU backend keeps its memory: do not write to it."""
    return jax.device_put(array)
