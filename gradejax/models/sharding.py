"""Tensor parallelism for decoders larger than one device: logical axes, and where they go.

Each parameter's axes have names; a rule gives a name to the mesh. Whole groups of key heads (with
their queries), shares of the MLP's inside, of the vocabulary and of the experts lie on one device,
so a block needs one sum over devices after attention and one after the MLP; XLA puts them in.
Norms, routers and other small things are on every device.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "model"  # the mesh axis that a decoder is split over

# Logical axes that are split; in a tensor that has several, the first that divides.
SPLIT = ("expert", "kv", "mlp", "vocab")

# Parameter paths (in full) → names of their axes. A mixture's have "expert" in front, and kernels
# among them their input axis after it. What no pattern fits is on every device.
AXES = (
    (r"layers_\d+/attn/qkv/kernel", ("kv", "place", "head", "width")),
    (r"layers_\d+/attn/qkv/bias", ("kv", "place", "head")),
    (r"layers_\d+/attn/o/kernel", ("width", "kv", "query", "head")),
    (r"layers_\d+/attn/sinks", ("kv", "query")),
    (r"layers_\d+/mlp/gate_up/kernel", ("gate", "mlp", "width")),
    (r"layers_\d+/mlp/gate_up/bias", ("gate", "mlp")),
    (r"layers_\d+/mlp/up/kernel", ("mlp", "width")),
    (r"layers_\d+/mlp/up/bias", ("mlp",)),
    (r"layers_\d+/mlp/down/kernel", ("width", "mlp")),
    (r"layers_\d+/mlp/down/bias", ("width",)),
    (r"embedding/embedding", ("vocab", "width")),
    (r"head/kernel", ("vocab", "width")),
)


def model_mesh(devices=None) -> Mesh:
    """A mesh of one axis, AXIS, over ``devices`` (all of this process by default)."""
    devices = jax.devices() if devices is None else list(devices)
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def axis_names(path: str) -> tuple[str, ...]:
    """Logical axes of the parameter at ``path`` (names joined by /); () when it is not split."""
    return next((names for pattern, names in AXES if re.fullmatch(pattern, path)), ())


def partition(path: str, shape: tuple[int, ...], parts: int) -> PartitionSpec:
    """How a parameter is split in ``parts``.

    An axis of one (a single key head; the scales of weights in 8 bits) is kept whole. A tensor
    whose axis the devices do not divide, two key heads on four devices, is kept whole on each of
    them, and a warning names it; what is computed stays the same.
    """
    names = axis_names(path)
    if "/mlp/" in path and len(shape) == len(names) + 1:
        if path.endswith("kernel"):  # an expert's is [in, *out]
            names = (names[-1], *names[:-1])
        names = ("expert", *names)
    if not any(n in SPLIT for n in names):
        return PartitionSpec()
    if len(names) != len(shape):
        raise ValueError(f"{path} has shape {shape}; its axes should be {', '.join(names)}")
    able = [names.index(n) for n in SPLIT if n in names and shape[names.index(n)] > 1]
    for at in able:
        if shape[at] % parts == 0:
            return PartitionSpec(*(AXIS if i == at else None for i in range(len(shape))))
    if able:
        why = " and ".join(f"{names[at]} of {shape[at]}" for at in able)
        warnings.warn(
            f"{path} {shape} is kept whole on each of {parts} devices: they do not divide its "
            f"{why}", stacklevel=3,
        )  # fmt: skip
    return PartitionSpec()


def _path(keys) -> str:
    """Path of a leaf; the fields of a weight in 8 bits count as the weight itself."""
    return "/".join(str(k.key) for k in keys if isinstance(k, jax.tree_util.DictKey))


def shardings(params: Mapping[str, Any], mesh: Mesh) -> Any:
    """The place of every array of a decoder's parameters.

    Args:
      params: {"params": tree} of arrays or shapes.
      mesh: with the axis AXIS, see ``model_mesh``; its axes must be of type Auto, which
        ``jax.make_mesh`` does not give by itself.

    Returns:
      A tree of ``NamedSharding``, for ``device_put``, ``jit`` or a restore.
    """
    if AXIS not in mesh.shape:
        raise ValueError(f"the mesh needs an axis {AXIS!r}, it has {', '.join(mesh.shape)}")
    parts = mesh.shape[AXIS]
    return jax.tree_util.tree_map_with_path(
        lambda keys, x: NamedSharding(
            mesh, partition(_path(keys).removeprefix("params/"), tuple(x.shape), parts)
        ),
        params,
    )


def shard(params: Mapping[str, Any], mesh: Mesh) -> Any:
    """The parameters laid out over the mesh; computations on them follow."""
    return jax.device_put(params, shardings(params, mesh))


def device_bytes(tree: Any) -> dict[jax.Device, int]:
    """Bytes that each device holds of a tree."""
    held: dict[jax.Device, int] = {}
    for x in jax.tree.leaves(tree):
        for piece in x.addressable_shards:
            held[piece.device] = held.get(piece.device, 0) + piece.data.nbytes
    return held
