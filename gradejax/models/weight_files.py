"""The weight files of a folder, as lazy tensors under Hugging Face names.

safetensors (one file, or shards by an index) before ``flax_model.msgpack``; a ``.gguf`` file is
given by its own path. Nothing is read before it is asked for.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from gradejax.models.config import read_json
from gradejax.models.flax_msgpack import read_flax_msgpack
from gradejax.models.lazy import LazyTensor

_DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class WeightFiles:
    """What was opened.

    Attributes:
      files: in a fixed order, for the digest.
      tensors: by Hugging Face name, in torch's layout.
    """

    files: tuple[pathlib.Path, ...]
    tensors: Mapping[str, LazyTensor]


def _again(path: pathlib.Path) -> str:
    """What to do about a file that is not what its name says."""
    with path.open("rb") as file:
        pointer = file.read(24).startswith(b"version https://git-lfs")
    if pointer:
        return "it is a pointer of git-lfs: fetch the file itself with `git lfs pull`"
    return "copy or download it again"


def open_safetensors(path: pathlib.Path) -> dict[str, LazyTensor]:
    """The tensors of a file by name; ValueError for a torn one or a dtype that is not read."""
    try:
        with safe_open(path, framework="numpy"):
            pass  # checks the header against the file's length, overlaps and gaps included
    except SafetensorError as error:
        raise ValueError(
            f"{path} is torn or not a safetensors file ({error}); {_again(path)}"
        ) from error
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: _entry(path, name, 8 + size, entry) for name, entry in header.items()}


def _entry(path: pathlib.Path, name: str, base: int, entry: Mapping[str, Any]) -> LazyTensor:
    kind = entry["dtype"]
    if kind not in _DTYPES:
        raise ValueError(
            f"tensor {name!r} of {path} is stored as {kind}; supported: {', '.join(_DTYPES)}"
        )
    dtype, shape = np.dtype(_DTYPES[kind]), tuple(entry["shape"])
    row, begin = math.prod(shape[1:]), base + entry["data_offsets"][0]

    # Read, not mapped: mapped pages would stay in memory as long as the file is open.
    def read(start, stop):
        at, count = begin + start * row * dtype.itemsize, (stop - start) * row
        return np.fromfile(path, dtype, count, offset=at).reshape(stop - start, *shape[1:])

    return LazyTensor(shape, read)


INDEX = "model.safetensors.index.json"


def is_file(path: pathlib.Path) -> bool:
    """Whether there is a file of that name.

    Raises:
      ValueError: a folder, or something else, has the name.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ValueError(f"{path} is {kind}; expected a file of that name")
    return path.is_file()


def _shards(folder: pathlib.Path, entries: Any) -> tuple[pathlib.Path, ...]:
    """The files that an index names, which must be the folder's own and all there."""
    index = folder / INDEX
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"{index} has no weight_map")
    if not all(isinstance(f, str) and f for f in entries.values()):
        raise ValueError(f"{index}: weight_map must map tensors to names of files")
    names = sorted(set(entries.values()))
    # Another folder's file would be read as this model's.
    outside = [n for n in names if "\0" in n or ".." in pathlib.PurePath(n).parts
               or pathlib.PurePath(n).is_absolute()]  # fmt: skip
    if outside:
        raise ValueError(
            f"{index} must name files of its own folder; got {', '.join(map(repr, outside[:5]))}"
        )
    if lost := [n for n in names if not is_file(folder / n)]:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        raise FileNotFoundError(
            f"{folder} lacks {len(lost)} of the {len(names)} files that {INDEX} names: "
            f"{', '.join(lost[:5])}{more}; copy or download them again"
        )
    return tuple(folder / n for n in names)


def open_weights(folder: pathlib.Path) -> WeightFiles:
    """Open a folder's weights.

    Raises:
      FileNotFoundError: no weights, or a shard that the index names is not there.
      ValueError: a torn file, a folder where a file should be, a tensor in two files, or an index
        that does not fit its shards or names files elsewhere.
    """
    index, single = folder / INDEX, folder / "model.safetensors"
    flax_file = folder / "flax_model.msgpack"
    if is_file(index):
        entries = read_json(index).get("weight_map")
        files = _shards(folder, entries)
        if is_file(single) and single not in files:
            raise ValueError(
                f"{folder} holds both {single.name} and an index of other files ({index.name}); "
                "which is meant? Remove one of them"
            )
        tensors: dict[str, LazyTensor] = {}
        for path in files:
            for name, tensor in open_safetensors(path).items():
                if name in tensors:
                    raise ValueError(f"tensor {name!r} stands in two files of {folder}")
                tensors[name] = tensor
        if lost := sorted(entries.keys() - tensors.keys()):
            raise ValueError(f"{index} lists tensors that no file holds: {', '.join(lost[:10])}")
        return WeightFiles(files, tensors)
    if is_file(single):
        return WeightFiles((single,), open_safetensors(single))
    if is_file(flax_file):
        return WeightFiles((flax_file,), read_flax_msgpack(flax_file))
    loose = sorted(p.name for p in folder.glob("*.safetensors"))
    found = f"; {', '.join(loose[:3])} is not named by any of these" if loose else ""
    if not loose and (torchs := sorted(p.name for p in folder.glob("pytorch_model*.bin"))):
        found = (f"; {torchs[0]} is a pickle, which is not read: save the model in torch with "
                 "safe_serialization=True")  # fmt: skip
    raise FileNotFoundError(
        f"{folder} holds no weights; expected model.safetensors, model.safetensors.index.json or "
        f"flax_model.msgpack{found}"
    )


def digest_of(files: Iterable[pathlib.Path]) -> str:
    """sha256 over the files' own sha256, in order."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


def check_names(
    wanted: Iterable[str], found: Iterable[str], known: Callable[[str], bool], where: str
) -> None:
    """Every wanted tensor is there and no other, except those known to be carried unused.

    Args:
      wanted: names that parameters need.
      found: names in the files.
      known: whether an unwanted name is one that such files are known to carry.
      where: folder and family, for the message.

    Raises:
      ValueError: names the missing and the extra ones.
    """
    wanted, found = set(wanted), set(found)
    missing = sorted(wanted - found)
    extra = sorted(n for n in found - wanted if not known(n))
    lines = [f"{where}:"]
    for what, names in (("missing tensors", missing),
                        ("tensors that no parameter wants", extra)):  # fmt: skip
        if names:
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            lines.append(f"  {what}: {', '.join(names[:10])}{more}")
    if len(lines) > 1:
        raise ValueError("\n".join(lines))


def check_shape(name: str, tensor: LazyTensor, shape: tuple[int, ...], where: str) -> None:
    """Raises: ValueError with both shapes when they differ."""
    if tensor.shape != shape:
        raise ValueError(
            f"tensor {name!r} of {where} has shape {tensor.shape}; its config asks for {shape}"
        )
