"""Looks at the values of a checkpoint's tensors as they are read."""

import jax.numpy as jnp
import numpy as np

DTYPES = ("float32", "bfloat16", "float16")  # of parameters
_CHUNK = 1 << 22  # values looked at together
# All ones in these bits: an infinity or no number.
_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00}


def check_values(name: str, array: np.ndarray, where: str, dtype=None) -> None:
    """Refuse a tensor that cannot be a weight.

    One NaN makes every reply of the model noise, and would be found out much later.

    Args:
      name: of the tensor.
      array: as stored.
      where: what it comes from.
      dtype: it will be cast to, if to any.

    Raises:
      ValueError: its dtype is no floating-point one, or a value is not finite, before or after the
        cast.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"tensor {name!r} of {where} holds {array.dtype}; expected a floating-point dtype"
        )
    bits = _EXPONENT.get(array.dtype.name)
    # Bit patterns are compared where they can be: NumPy has no fast isfinite for 16 bits.
    flat = (array if bits is None else np.asarray(array).view(np.uint16)).reshape(-1)
    bad = 0
    for at in range(0, flat.size, _CHUNK):
        part = flat[at : at + _CHUNK]
        good = np.isfinite(part) if bits is None else (part & bits) != bits
        bad += part.size - int(np.count_nonzero(good))
    if bad:
        raise ValueError(
            f"tensor {name!r} of {where} holds {bad} values that are not finite numbers, of "
            f"{flat.size}; the file is damaged or was written after training diverged"
        )
    if dtype is not None:
        check_cast(name, array, dtype, where)


def check_cast(name: str, array: np.ndarray, dtype, where: str) -> None:
    """Refuse a cast that makes infinities of finite numbers.

    float16 ends at 65504, and weights of bfloat16 models may lie beyond.

    Args:
      name: of the tensor.
      array: as stored, of finite floats.
      dtype: it will be cast to.
      where: what it comes from.

    Raises:
      ValueError: names the value farthest out and the dtypes that hold it.
    """
    kind = jnp.dtype(dtype)
    if not array.size or jnp.finfo(array.dtype).max <= jnp.finfo(kind).max:
        return
    far = 0.0
    flat = np.asarray(array).reshape(-1)
    for at in range(0, flat.size, _CHUNK):
        part = flat[at : at + _CHUNK]
        if array.dtype.name in _EXPONENT:  # without the sign, bits are ordered as values are
            size = (part.view(np.uint16) & 0x7FFF).max().view(array.dtype)
        else:
            size = max(part.max(), -part.min())
        far = max(far, float(size))

    def holds(other) -> bool:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(far).astype(jnp.dtype(other))))

    if not holds(kind):
        able = " or ".join(d for d in DTYPES if holds(d)) or "none of those that are supported"
        raise ValueError(
            f"tensor {name!r} of {where} holds values of up to {far:.6g}, which {kind.name} would "
            f"make infinite (it ends at {float(jnp.finfo(kind).max):.6g}); dtypes that hold them: "
            f"{able}"
        )
