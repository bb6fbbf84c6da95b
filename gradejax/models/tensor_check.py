"""Looks at the values of a checkpoint's tensors as they are read."""

import jax.numpy as jnp
import numpy as np

_CHUNK = 1 << 22  # values looked at together
# All ones in these bits: an infinity or no number.
_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00}


def check_values(name: str, array: np.ndarray, where: str) -> None:
    """Refuse a tensor that cannot be a weight.

    One NaN makes every reply of the model noise, and would be found out much later.

    Args:
      name: of the tensor.
      array: as stored.
      where: what it comes from.

    Raises:
      ValueError: its dtype is no floating-point one, or a value is not finite.
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
