"""Reading .gguf files: metadata, and tensors dequantised to float32 one at a time.

The format is read by the ``gguf`` package of llama.cpp, which needs NumPy only. What the metadata
and the tensor names mean in Hugging Face terms stands in ``gguf_names``.
"""

import dataclasses
import importlib.metadata
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradejax.models.gguf_names import gguf_config, huggingface_tensors
from gradejax.models.lazy import LazyTensor


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """An open file.

    Attributes:
      path: of the file.
      fields: metadata as the ``gguf`` package holds it; read single entries with ``get``.
      tensors: under GGUF's names, in torch's axis order (GGUF lists axes the other way round).
    """

    path: pathlib.Path
    fields: Any
    tensors: dict[str, LazyTensor]

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata entry: a number, a bool, a string or a list of them."""
        field = self.fields.get(key)
        return default if field is None else field.contents()


def _package():
    try:
        import gguf
    except ImportError:
        raise ImportError(
            "reading .gguf files needs the gguf package: pip install gguf (or gradejax[gguf])"
        ) from None
    return gguf


def _lazy(package, tensor, path: pathlib.Path) -> LazyTensor:
    kind, stored = tensor.tensor_type, tensor.data.dtype
    inner = tensor.data.shape[1:]  # of a row: elements, or bytes when they are in blocks
    shape = tuple(int(n) for n in reversed(tensor.shape.tolist()))
    size, begin = math.prod(inner), tensor.data_offset

    def read(start, stop):
        if stop <= start:
            return np.empty((0, *shape[1:]), np.float32)
        # Read, not mapped: mapped pages would stay in memory as long as the file is open.
        at = begin + start * size * stored.itemsize
        flat = np.fromfile(path, stored, (stop - start) * size, offset=at)
        block = flat.reshape(stop - start, *inner)
        return np.asarray(package.quants.dequantize(block, kind), np.float32)

    # One row is decoded now, so that a type nobody can decode is found before anything is loaded.
    try:
        read(0, 1)
    except NotImplementedError:
        known = ["F32", "F16", *sorted(t.name for t in package.quants._type_traits)]
        raise ValueError(
            f"tensor {tensor.name!r} of {path} is of type {kind.name}, which the gguf package "
            f"{_version(package)} cannot dequantise; it can {', '.join(known)}"
        ) from None
    return LazyTensor(shape, read)


def _version(package) -> str:
    return importlib.metadata.version(package.__name__)


def open_gguf(path: str | pathlib.Path) -> GgufFile:
    """Open a file and check that it is whole; no tensor is read beyond its first row.

    Raises:
      FileNotFoundError: no such file.
      ImportError: the gguf package is missing; the message says how to install it.
      ValueError: not a GGUF file, a torn one, of a foreign byte order, or one part of several; or a
        tensor of a type that cannot be dequantised.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"GGUF file {str(path)!r} does not exist")
    package = _package()
    try:
        reader = package.GGUFReader(path)
        swapped = reader.byte_order == "S"
        parts = reader.fields.get("split.count")
        several = parts is not None and int(parts.contents()) > 1
    # What the package raises for a cut file depends on where it was cut.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"{path} is torn or not a GGUF file ({error}); copy or download it again"
        ) from error
    if swapped:
        raise ValueError(
            f"{path} is of the other byte order; convert it with gguf's gguf_convert_endian"
        )
    if several:
        raise ValueError(
            f"{path} is one of {int(parts.contents())} parts; join them with llama.cpp's "
            "gguf-split --merge"
        )
    tensors = {t.name: _lazy(package, t, path) for t in reader.tensors}
    return GgufFile(path, reader.fields, tensors)


def read_gguf(
    path: str | pathlib.Path, ignore: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, LazyTensor]]:
    """A file as Hugging Face would have it.

    Args:
      path: of a ``.gguf`` file.
      ignore: metadata entries that are known to change nothing of what the model computes.

    Returns:
      (what ``config.json`` would say, for ``decoder_config``; tensors under Hugging Face names in
      torch's layout). Tensors that no rule names keep GGUF's name, so that a strict loader reports
      them.

    Raises:
      as ``open_gguf``; ValueError also for an architecture or a rope scaling that is not supported
      (the supported are listed) and for metadata that is missing, or that changes what a model
      computes and is not supported.
    """
    file = open_gguf(path)
    config = gguf_config(file, ignore)
    return config, huggingface_tensors(file, config)
