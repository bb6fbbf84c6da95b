"""From tensors under Hugging Face names to a parameter tree, strictly, and back.

Whatever reads a file format hands over names and lazy readers; nothing here knows files. Tensors
are read and cast one by one, large ones by stretches, and fused arrays handed over without a copy,
so that the host holds the tree once and little besides.
"""

import collections
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.lazy import LazyTensor, empty, to_device
from gradejax.models.quantize import Int8
from gradejax.models.tensor_check import DTYPES, check_cast, check_values
from gradejax.models.weight_names import (
    IGNORED_SUFFIXES,
    PREFIX,
    Entry,
    head_entry,
    weight_table,
)

TURNED = ("conv", "expert")
Readers = Mapping[str, Callable[[], np.ndarray]]


def place(entry: Entry, array: np.ndarray, targets: Mapping[str, np.ndarray]) -> None:
    """Write a tensor into its places of our arrays, cast to their dtype."""
    start = 0
    for part in entry.parts:
        stretch = slice(start, start + part.size)
        start += part.size
        target = targets[part.path]
        cut = array[:, stretch] if entry.kind == "conv" else array[stretch]
        if entry.kind in TURNED:
            cut = cut.T
        elif entry.kind == "interleaved":
            cut = cut.reshape(*cut.shape[:-1], -1, 2).swapaxes(-1, -2)
        target[part.at] = cut.reshape(target[part.at].shape)


def _is_whole(entry: Entry) -> bool:
    """Whether the tensor is one of our arrays, at most transposed."""
    return len(entry.parts) == 1 and not entry.parts[0].at and entry.kind != "interleaved"


def _fill(entry: Entry, tensor: LazyTensor, targets: Mapping[str, np.ndarray], where: str) -> None:
    """``place`` by stretches, for the large ones: a tensor that is all of one of our arrays."""
    target = targets[entry.parts[0].path]
    if entry.kind in TURNED:
        theirs = target.reshape(entry.shape[::-1]).T
    else:
        theirs = target.reshape(entry.shape)
    for index, piece in tensor.pieces():
        check_values(entry.name, piece, where, target.dtype)
        theirs[index] = piece


def gather(entry: Entry, sources: Mapping[str, np.ndarray]) -> np.ndarray:
    """Inverse of ``place``: the tensor as Hugging Face stores it."""
    cuts = []
    for part in entry.parts:
        cut = np.asarray(sources[part.path])[part.at]
        if entry.kind in ("plain", "interleaved"):
            cut = cut.swapaxes(-1, -2) if entry.kind == "interleaved" else cut
            cuts.append(cut.reshape(part.size, *entry.shape[1:]))
        else:
            wide = (part.size, -1) if entry.kind == "conv" else (-1, part.size)
            cuts.append(cut.reshape(wide).T)
    axis = 1 if entry.kind == "conv" else 0
    return np.ascontiguousarray(cuts[0] if len(cuts) == 1 else np.concatenate(cuts, axis=axis))


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path."""
    tree = jax.eval_shape(
        lambda: Decoder(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    )
    return {k: v.shape for k, v in flatten_dict(tree["params"], sep="/").items()}


def _check_names(config: DecoderConfig, table, found: set[str], where: str) -> None:
    known = {e.name for e in table}
    ignored = {n for n in found if n.endswith(IGNORED_SUFFIXES[config.family])}
    if config.tied:
        ignored.add(head_entry(config).name)  # compared below
    missing, extra = sorted(known - found), sorted(found - known - ignored)
    if missing or extra:
        lines = [f"{where} does not fit its config.json ({config.family}):"]
        for what, names in (("missing tensors", missing),
                            ("tensors that no parameter wants", extra)):  # fmt: skip
            if names:
                more = f" and {len(names) - 10} more" if len(names) > 10 else ""
                lines.append(f"  {what}: {', '.join(names[:10])}{more}")
        raise ValueError("\n".join(lines))


def _check_shape(entry: Entry, shape: tuple[int, ...], where: str) -> None:
    if tuple(shape) != entry.shape:
        raise ValueError(
            f"tensor {entry.name!r} of {where} has shape {tuple(shape)}; its config.json asks for "
            f"{entry.shape}"
        )


def _read(entry: Entry, tensors: Readers, where: str, dtype=None) -> np.ndarray:
    array = tensors[entry.name]()
    _check_shape(entry, array.shape, where)
    check_values(entry.name, array, where, dtype)
    return array


def _check_tied_head(config: DecoderConfig, table, tensors: Readers, where: str) -> None:
    """A tied head that stands in the file all the same must be the embedding (D04)."""
    head, embedding = head_entry(config), table[0]
    if not config.tied or head.name not in tensors:
        return
    if not np.array_equal(_read(head, tensors, where), _read(embedding, tensors, where)):
        raise ValueError(
            f"{where} says tie_word_embeddings, yet its {head.name} differs from "
            f"{embedding.name}; set the flag to false to use the head"
        )


def params_from_tensors(config: DecoderConfig, tensors: Readers, *, dtype=jnp.float32,
                        where: str = "the checkpoint"):  # fmt: skip
    """Fill a decoder's tree.

    Args:
      config: the decoder's shape.
      tensors: reader of each tensor by its Hugging Face name, in torch's layout: ``LazyTensor``s,
        or functions that return the whole. Each is read once (the embedding twice when a tied head
        stands beside it), in the table's order.
      dtype: of the parameters, one of DTYPES.
      where: what the tensors come from, for messages.

    Returns:
      {"params": tree}.

    Raises:
      ValueError: another dtype; missing, unknown or mis-shaped tensors, or some that hold no floats
        or a NaN, or values that ``dtype`` cannot hold; a tied head that differs from the embedding.
    """
    kind = jnp.dtype(dtype)
    if kind.name not in DTYPES:
        raise ValueError(f"unsupported dtype {kind.name!r}; choose from {', '.join(DTYPES)}")
    table = weight_table(config)
    prefix = PREFIX[config.family]
    if not any(n.startswith(prefix) for n in tensors):  # a file of the trunk alone
        tensors = {n if n == head_entry(config).name else prefix + n: r for n, r in tensors.items()}
    _check_names(config, table, set(tensors), where)
    _check_tied_head(config, table, tensors, where)
    shapes = parameter_shapes(config)
    left = collections.Counter(p.path for e in table for p in e.parts)
    open_arrays: dict[str, np.ndarray] = {}
    flat: dict[str, jax.Array] = {}
    for entry in table:
        for part in entry.parts:
            if part.path not in open_arrays:
                open_arrays[part.path] = empty(shapes[part.path], kind)
        tensor = tensors[entry.name]
        if isinstance(tensor, LazyTensor) and _is_whole(entry):
            _check_shape(entry, tensor.shape, where)
            _fill(entry, tensor, open_arrays, where)
        else:
            place(entry, _read(entry, tensors, where, kind), open_arrays)
        for part in entry.parts:
            left[part.path] -= 1
            if not left[part.path]:
                flat[part.path] = to_device(open_arrays.pop(part.path))
    if lost := shapes.keys() - flat.keys():
        raise AssertionError(f"no tensor filled {sorted(lost)}")
    return {"params": unflatten_dict(flat, sep="/")}


def tensors_from_params(config: DecoderConfig, params, dtype) -> dict[str, np.ndarray]:
    """The tree's tensors under Hugging Face names; inverse of ``params_from_tensors``.

    Raises:
      ValueError: finite values that ``dtype`` would make infinite; parameters in 8 bits.
    """
    flat = flatten_dict(params["params"], sep="/", is_leaf=lambda _, x: isinstance(x, Int8))
    if any(isinstance(x, Int8) for x in flat.values()):
        raise ValueError(
            "expected parameters of floats, got some in 8 bits: save those they were made from, or "
            "widen them first (Int8.widened)"
        )
    flat, out = jax.device_get(flat), {}
    for entry in weight_table(config):
        array = gather(entry, flat)
        check_cast(entry.name, array[np.isfinite(array)], dtype, "the parameters")
        out[entry.name] = array.astype(jnp.dtype(dtype))
    return out
