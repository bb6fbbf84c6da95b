"""A stored tensor that is read when it is asked for, whole or a stretch of rows at a time.

Every weight format (safetensors, Flax msgpack, GGUF) is offered as a mapping from Hugging Face
names, in torch's layout, to these; so one strict filler serves them all and the host never holds
the model twice.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """A tensor on disk.

    Attributes:
      shape: in torch's layout.
      rows: (start, stop) → [stop - start, ...], that stretch of the first axis.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]

    def __call__(self) -> np.ndarray:
        """All of it, [*shape]."""
        return self.rows(0, self.shape[0])

    def transposed(self) -> "LazyTensor":
        """The matrix with its two axes swapped; a stretch of its rows are columns on disk."""
        return LazyTensor(self.shape[::-1], lambda start, stop: self.columns(start, stop).T)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """A stretch of the second axis; reads all rows."""
        return self.rows(0, self.shape[0])[:, start:stop]

    def minus(self, value: float) -> "LazyTensor":
        """Each element less a number, in float32."""
        return LazyTensor(
            self.shape,
            lambda start, stop: self.rows(start, stop).astype(np.float32) - np.float32(value),
        )

    def reordered(self, order: np.ndarray) -> "LazyTensor":
        """Row i is row ``order[i]`` of what is stored; a stretch reads only what spans it."""

        def rows(start, stop):
            wanted = order[start:stop]
            if not wanted.size:
                return self.rows(0, 0)
            low = int(wanted.min())
            return self.rows(low, int(wanted.max()) + 1)[wanted - low]

        return LazyTensor(self.shape, rows)
