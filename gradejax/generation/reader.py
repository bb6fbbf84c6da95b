"""Prompts of one call read batch by batch, after what they all have in common."""

from collections.abc import Sequence

import jax
import numpy as np

from gradejax.generation import loop as loop_lib
from gradejax.generation.prompts import (
    bucket,
    common_bucket,
    common_prefix,
    left_pad,
    reading_shape,
    ropes_by_length,
)
from gradejax.models.lora import Lora


class Reader:
    """Reads the prompts of one call, batch by batch, after what they have in common."""

    def __init__(self, model, params, prompts, lora, soft, soft_of, *, max_new, chunk, place,
                 alone, dense=True):  # fmt: skip
        self.dense = dense  # whether products may read tokens of several rows side by side
        self.model, self.params, self.prompts = model, params, prompts
        self.lora, self.soft, self.chunk, self.place = lora, soft, chunk, place
        self.soft_of = np.arange(len(prompts)) if soft_of is None else np.asarray(soft_of)
        self.extra = 0 if soft is None else soft.shape[1]
        # Where keys turn by the length of their row, rows of different lengths share none.
        alone = alone or bool(ropes_by_length(model.config))
        self.shared = 0 if alone else common_prefix(prompts)
        self.room = model.config.max_positions - max_new - self.extra - self.shared
        self.owner, self.common = np.zeros(len(prompts), int), None
        if self.shared:
            self._read_common()

    def _read_common(self):
        """One row, or one for each mixture of adapters: keys and values depend on it."""
        weights, count = None, 1
        if self.lora is not None:
            weights, self.owner = np.unique(np.asarray(self.lora.weights), axis=0,
                                            return_inverse=True)  # fmt: skip
            self.owner, count = self.owner.reshape(-1), len(weights)
            if 2 * count > len(self.prompts):  # too many mixtures to be worth it
                self.shared, self.room = 0, self.room + self.shared
                return
            rows = 2 ** (count - 1).bit_length()
            weights = np.pad(weights, ((0, rows - count), (0, 0)))
        length = self.padded(common_bucket(self.shared))
        tokens, mask = left_pad([self.prompts[0][: self.shared]] * count,
                                1 if weights is None else len(weights), length)  # fmt: skip
        lora = None if weights is None else self.lora.replace(weights=weights)
        _, self.common = loop_lib.read_in_chunks(
            self.model, self.params, tokens, mask, (), lora, None, chunk=self.chunk
        )

    def padded(self, length: int) -> int:
        return length if length <= self.chunk else -(-length // self.chunk) * self.chunk

    def lora_of(self, rows: Sequence[int], count: int) -> Lora | None:
        """The adapters with the weights of these prompts, [count, n]; filler rows have none."""
        if self.lora is None:
            return None
        weights = np.asarray(self.lora.weights)[list(rows)]
        return self.lora.replace(
            weights=self.place(np.pad(weights, ((0, count - len(rows)), (0, 0))))
        )

    def own_lengths(self) -> list[int]:
        """Tokens of each prompt behind what all have in common."""
        return [len(p) - self.shared for p in self.prompts]

    def read(self, rows: Sequence[int], count: int, length: int | None = None):
        """Read these prompts, padded to ``count`` rows and ``length`` tokens.

        Returns:
          last states [count, E], the parts before the prompts, the prompts' own part.
        """
        own = [self.prompts[i][self.shared :] for i in rows]
        if length is None:
            length = self.padded(bucket(max(map(len, own)), self.room))
        slots, side_by_side = length + self.extra, None
        if self.dense and length <= self.chunk:
            wide, total = reading_shape([len(p) + self.extra for p in own], count, length)
            if wide <= self.chunk:
                length, side_by_side = wide, total
        tokens, mask = left_pad(own, count, length)
        parts = ()
        if self.shared:
            common = self.common
            if common.real.shape[0] > 1:
                pick = np.pad(self.owner[list(rows)], (0, count - len(rows)))
                common = jax.tree.map(lambda x: x[pick], common)
            parts = (common,)
        soft = None
        if self.soft is not None:
            # Rows of a NumPy array or of one on the device alike; fillers take any.
            pick = np.pad(self.soft_of[list(rows)], (0, count - len(rows)))
            soft = self.place(self.soft[pick])
        hidden, part = loop_lib.read_in_chunks(
            self.model, self.params, self.place(tokens), self.place(mask), parts,
            self.lora_of(rows, count), soft, chunk=self.chunk, count=side_by_side,
        )  # fmt: skip
        return hidden, parts, loop_lib.cut_to(part, slots)
