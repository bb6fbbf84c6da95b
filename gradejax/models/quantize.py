"""8-bit weights of a frozen decoder, one scale for each output channel.

    W ≈ values · scale,   scale = max |W| over the inputs of a channel / 127,   |error| ≤ scale / 2

Only weights are rounded; states and products stay in the model's dtype. The scale multiplies the
product, not the matrix (x·W ≈ (x·values) · scale), so nothing but the matrix at hand is ever
widened, and values of at most 127 are exact in bfloat16. An embedding has a scale for each row of
the vocabulary, which serves the lookup and, of a tied one, the head. Norms, biases, sinks, routers
and learned positions stay as they are: they are small, and routers decide.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

LIMIT = 127  # symmetric: -128 is not used

# Last two names of a parameter's path → (axes it has, its input axes). Matrices of experts have one
# more axis, the experts, in front.
_INPUTS = {
    "qkv/kernel": (4, (0,)), "o/kernel": (4, (0, 1, 2)), "gate_up/kernel": (3, (0,)),
    "up/kernel": (2, (0,)), "down/kernel": (2, (0,)), "head/kernel": (2, (0,)),
    "embedding/embedding": (2, (1,)),
}  # fmt: skip


@flax.struct.dataclass
class Int8:
    """A rounded matrix: ``values`` int8 of the matrix's shape, ``scale`` float32, 1 on its inputs.

    ``values`` comes first: linen compares a parameter's first leaf with the shape it declares.
    """

    values: jax.Array
    scale: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def __getitem__(self, index) -> "Int8":
        """A part by its outputs; ``index`` must keep the input axes whole."""
        return Int8(self.values[index], self.scale[index])

    def widened(self, dtype=jnp.float32) -> jax.Array:
        """The matrix itself, for merging and tests."""
        return (self.values.astype(jnp.float32) * self.scale).astype(dtype)


def rounded(weight: jax.Array, inputs: tuple[int, ...]) -> Int8:
    """Round to the nearest step; a channel of zeros gets scale 1 and stays zero."""
    wide = weight.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=inputs, keepdims=True)
    scale = jnp.where(largest > 0, largest / LIMIT, 1.0)
    values = jnp.clip(jnp.round(wide / scale), -LIMIT, LIMIT).astype(jnp.int8)
    return Int8(values, scale)


def quantize(params: Mapping[str, Any]) -> dict[str, Any]:
    """A decoder's parameters with its matrices in 8 bits, for ``Decoder.apply`` and all above it.

    One matrix is rounded at a time, so the peak is the two trees and one float32 matrix; drop the
    tree given in when it is no longer needed.

    Raises:
      ValueError: nothing in the tree is a decoder's matrix, or it is in 8 bits already.
    """
    flat = flatten_dict(params["params"], sep="/", is_leaf=lambda _, x: isinstance(x, Int8))
    if any(isinstance(x, Int8) for x in flat.values()):
        raise ValueError("these parameters are in 8 bits already")
    round_one, out = jax.jit(rounded, static_argnums=1), {}
    for path, weight in flat.items():
        axes, inputs = _INPUTS.get("/".join(path.split("/")[-2:]), (0, ()))
        inputs = tuple(i + weight.ndim - axes for i in inputs)
        out[path] = round_one(weight, inputs) if inputs else weight
    if not any(isinstance(x, Int8) for x in out.values()):
        raise ValueError(f"no matrix of a decoder among the parameters: {sorted(flat)[:6]}")
    return {**params, "params": unflatten_dict(out, sep="/")}


def product(x: jax.Array, kernel: jax.Array | Int8, axes: int = 1) -> jax.Array:
    """x [..., *in] · kernel [*in, *out] over the last ``axes`` axes of x, in x's dtype."""
    numbers = ((range(x.ndim - axes, x.ndim), range(axes)), ((), ()))
    if not isinstance(kernel, Int8):
        return jax.lax.dot_general(x, kernel.astype(x.dtype), numbers)
    out = jax.lax.dot_general(x, kernel.values.astype(x.dtype), numbers)
    scale = kernel.scale.reshape((1,) * (x.ndim - axes) + kernel.shape[axes:])
    return out * scale.astype(x.dtype)


def ragged_product(x, kernel: jax.Array | Int8, counts, owner) -> jax.Array:
    """Rows sorted by expert, each through its expert's matrix.

    Args:
      x: [m, in].
      kernel: [X, in, *out].
      counts: [X] int32, rows of each expert.
      owner: [m] int32, the expert of each row.

    Returns:
      [m, *out] of x's dtype.
    """
    values = kernel.values if isinstance(kernel, Int8) else kernel
    flat = values.astype(x.dtype).reshape(*values.shape[:2], -1)
    out = jax.lax.ragged_dot(x, flat, counts).reshape(-1, *values.shape[2:])
    return out * kernel.scale[owner, 0].astype(x.dtype) if isinstance(kernel, Int8) else out


def lookup(table: jax.Array | Int8, ids: jax.Array, dtype) -> jax.Array:
    """Rows of an embedding [V, E] at ``ids`` [...], [..., E] of ``dtype``."""
    if not isinstance(table, Int8):
        return jnp.take(table, ids, axis=0).astype(dtype)
    rows = jnp.take(table.values, ids, axis=0).astype(jnp.float32)
    return (rows * jnp.take(table.scale, ids, axis=0)).astype(dtype)


def attend(x: jax.Array, table: jax.Array | Int8) -> jax.Array:
    """x [..., E] · table.T [E, V], the head of a tied embedding."""
    numbers = (((x.ndim - 1,), (1,)), ((), ()))
    if not isinstance(table, Int8):
        return jax.lax.dot_general(x, table.astype(x.dtype), numbers)
    out = jax.lax.dot_general(x, table.values.astype(x.dtype), numbers)
    return out * table.scale.reshape((1,) * (x.ndim - 1) + (-1,)).astype(x.dtype)


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
