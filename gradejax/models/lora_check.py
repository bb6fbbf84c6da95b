"""Whether adapters are of the decoder that is asked to use them."""

import re

from gradejax.models.config import DecoderConfig
from gradejax.models.lora import Lora, target_sizes


def check_fits(lora: Lora, config: DecoderConfig) -> None:
    """Look at names and shapes; no value is read, so it costs nothing under ``jit``.

    Args:
      lora: adapters, packed or not.
      config: of the decoder.

    Raises:
      ValueError: ``weights`` is None; a layer or a target that the decoder lacks, which would be
        passed over in silence; matrices of another size. The message names the first of them.
    """
    if lora.weights is None:
        raise ValueError("this Lora does not say which rows use it; see Lora.for_rows or weights=")
    sizes, count = target_sizes(config), lora.count
    for layer, entries in lora.tree.items():
        number = re.fullmatch(r"layers_(\d+)", layer)
        if number is None or int(number[1]) >= config.num_layers:
            raise ValueError(
                f"adapters of {layer!r}, which this {config.family} decoder lacks; it has layers_0 "
                f"to layers_{config.num_layers - 1}"
            )
        for target, entry in entries.items():
            if target not in sizes:
                if config.experts and target in ("gate", "up", "down"):
                    continue  # the mixture says why not
                raise ValueError(
                    f"adapters of {layer}/{target}, which this {config.family} decoder lacks; "
                    f"choose from {', '.join(sizes)}"
                )
            a, b = (tuple(entry[key].shape) for key in "ab")
            wide, out = sizes[target]
            rank = a[-1] if len(a) == 3 else a[0] // count
            wanted = ((count, wide, rank), (count, rank, out)) if len(a) == 3 else (
                (count * rank, wide), (out, count * rank))  # fmt: skip
            if (a, b) != wanted:
                raise ValueError(
                    f"adapters of {layer}/{target} have A {a} and B {b}; this {config.family} "
                    f"decoder asks for {wanted[0]} and {wanted[1]}"
                )
