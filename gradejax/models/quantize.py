"""8-bit weights of a frozen decoder, with a scale for each group of a channel's inputs.

    W ≈ values · scale,   scale = max |W| over a group / 127,   |error| ≤ scale / 2

Only weights are rounded; states and products stay in the model's dtype. A group is 32 inputs of one
output channel, or all of them (``group=None``): then the scale multiplies the product in place of
the matrix, and the values, at most 127, are exact in bfloat16. Either way one matrix at a time is
widened, for the product at hand. An embedding is grouped within each row of the vocabulary, which
serves the lookup and, of a tied one, the head. Norms, biases, sinks, routers and learned positions
stay as they are: they are small, and routers decide.
"""

import math
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

LIMIT = 127  # symmetric: -128 is not used
GROUP = 32  # SmolLM2-135M: logits 1.9% off, 2.5% with whole channels; .031 of bfloat16's bytes

# Last two names of a parameter's path, and the axes it has → its input axes. An axis more is of
# experts, [X, in, *out] (see ``mixture``).
_INPUTS = {
    ("qkv/kernel", 4): (3,), ("o/kernel", 4): (1, 2, 3), ("gate_up/kernel", 3): (2,),
    ("up/kernel", 2): (1,), ("down/kernel", 2): (1,), ("head/kernel", 2): (1,),
    ("embedding/embedding", 2): (1,), ("gate_up/kernel", 4): (1,), ("down/kernel", 3): (1,),
}  # fmt: skip
FEW = range(2, 129)  # rows whose products a CPU takes with the weight first


@flax.struct.dataclass
class Int8:
    """A rounded matrix: ``values`` int8 of the matrix's shape, and ``scale``.

    Along an axis the scale has the matrix's size, 1 or, for groups, a divisor of the size. It is
    float32 for whole channels and bfloat16 for groups; the values are rounded to what it holds.
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
        """The matrix itself."""
        return _widen(self.values, self.scale, dtype)


def _widen(values, scale, dtype):
    for axis, (size, parts) in enumerate(zip(values.shape, scale.shape, strict=True)):
        if 1 < parts < size:
            scale = jnp.repeat(scale, size // parts, axis=axis)
    return (values.astype(jnp.float32) * scale.astype(jnp.float32)).astype(dtype)


def rounded(weight: jax.Array, inputs: tuple[int, ...], group: int | None = None) -> Int8:
    """Round to the nearest step; zeros alone get scale 1 and stay zero.

    Args:
      weight: a matrix.
      inputs: its input axes.
      group: inputs of a scale, along the last input axis; whole channels where it does not divide
        that axis, or None.
    """
    wide, at = weight.astype(jnp.float32), inputs[-1]
    shape = wide.shape
    grouped = group is not None and shape[at] % group == 0
    if grouped:
        wide = wide.reshape(*shape[:at], shape[at] // group, group, *shape[at + 1 :])
        inputs = (at + 1,)
    largest = jnp.max(jnp.abs(wide), axis=inputs, keepdims=True)
    scale = jnp.where(largest > 0, largest / LIMIT, 1.0)
    if grouped:
        scale = scale.astype(jnp.bfloat16)
    values = jnp.round(wide / scale.astype(jnp.float32))
    values = jnp.clip(values, -LIMIT, LIMIT).astype(jnp.int8).reshape(shape)
    return Int8(values, jnp.squeeze(scale, at + 1) if grouped else scale)


def quantize(params: Mapping[str, Any], group: int | None = GROUP) -> dict[str, Any]:
    """A decoder's parameters with its matrices in 8 bits, for ``Decoder.apply`` and all above it.

    Args:
      params: {"params": tree}.
      group: see ``rounded``.

    One matrix is rounded at a time, so the peak is the two trees and one float32 matrix; drop the
    tree given in when it is no longer needed.

    Raises:
      ValueError: nothing in the tree is a decoder's matrix, or it is in 8 bits already.
    """
    flat = flatten_dict(params["params"], sep="/", is_leaf=lambda _, x: isinstance(x, Int8))
    if any(isinstance(x, Int8) for x in flat.values()):
        raise ValueError("these parameters are in 8 bits already")
    round_one, out = jax.jit(rounded, static_argnums=(1, 2)), {}
    for path, weight in flat.items():
        inputs = _INPUTS.get(("/".join(path.split("/")[-2:]), weight.ndim), ())
        out[path] = round_one(weight, inputs, group) if inputs else weight
    if not any(isinstance(x, Int8) for x in out.values()):
        raise ValueError(f"no matrix of a decoder among the parameters: {sorted(flat)[:6]}")
    return {**params, "params": unflatten_dict(out, sep="/")}


def _beside(kernel: Int8, x: jax.Array) -> jax.Array:
    """The values [*out, *in] int8, to be widened beside their product with x and not before.

    Widened by themselves they would be the same in every step of a decoding loop and ready at its
    start, so XLA widens all matrices at once, before the loop or at its head, and keeps them
    (measured: the temporaries hold the whole model in float32, and an optimization barrier changes
    nothing). A zero that it cannot foresee, made of x, keeps each widening beside its product.
    """
    zero = jnp.minimum(jnp.abs(x.reshape(-1)[0]), 0).astype(jnp.int8)
    return kernel.values + zero


def _multiply(kernel: jax.Array | Int8, x, inputs: tuple[int, ...], how) -> jax.Array:
    """how(matrix of x's dtype), times the scale [*out] where it is for whole channels."""
    if not isinstance(kernel, Int8):
        return how(kernel.astype(x.dtype))
    values, scale = _beside(kernel, x), kernel.scale
    if any(scale.shape[i] > 1 for i in inputs):
        return how(_widen(values, scale, x.dtype))
    out = how(values.astype(x.dtype))
    scale = jnp.squeeze(scale, inputs)
    return out * scale.reshape((1,) * (out.ndim - scale.ndim) + scale.shape).astype(x.dtype)


def weight_first(rows: int) -> bool:
    """Whether ``product`` takes so many rows with the weight first."""
    return rows in FEW and jax.default_backend() == "cpu"


def product(x: jax.Array, kernel: jax.Array | Int8, axes: int = 1) -> jax.Array:
    """x [..., *in] · kernel [*out, *in] over the last ``axes`` axes of both, in x's dtype.

    A CPU's library reads a weight [out, in] along its rows when it is the product's first factor,
    and has to turn each of its blocks round when it is the second: of a decoding step's products
    that was a fifth, at 16 rows as at 64. From a few hundred rows on it no longer matters. XLA
    would put the factors back, so barriers stand around them.
    """
    left = x.shape[: x.ndim - axes]
    rows = math.prod(left)

    def how(w):
        out, size = w.shape[: w.ndim - axes], math.prod(w.shape[w.ndim - axes :])
        # Two axes each: what has more is not recognised as a plain product.
        flat, w = x.reshape(rows, size), w.reshape(-1, size)
        if weight_first(rows):
            keep = jax.lax.optimization_barrier
            y = keep(jax.lax.dot_general(w, keep(flat.T), (((1,), (0,)), ((), ())))).T
        else:
            y = jax.lax.dot_general(flat, w, (((1,), (1,)), ((), ())))
        return y.reshape(*left, *out)

    return _multiply(kernel, x, tuple(range(kernel.ndim - axes, kernel.ndim)), how)


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

    def how(w):
        out = jax.lax.ragged_dot(x, w.reshape(*w.shape[:2], -1), counts)
        return out.reshape(-1, *w.shape[2:])

    if not isinstance(kernel, Int8):
        return how(kernel.astype(x.dtype))
    values, scale = _beside(kernel, x), kernel.scale
    if scale.shape[1] > 1:
        return how(_widen(values, scale, x.dtype))
    return how(values.astype(x.dtype)) * scale[owner, 0].astype(x.dtype)


def lookup(table: jax.Array | Int8, ids: jax.Array, dtype) -> jax.Array:
    """Rows of an embedding [V, E] at ``ids`` [...], [..., E] of ``dtype``."""
    rows = jax.tree.map(lambda x: jnp.take(x, ids, axis=0), table)
    return rows.widened(dtype) if isinstance(rows, Int8) else rows.astype(dtype)


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
