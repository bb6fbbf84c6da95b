"""The fused attention of ``jax.nn.dot_product_attention``, where it serves.

Its cuDNN kernel never holds the [T, S] scores. It serves a prompt read whole, in half precision on
an NVIDIA GPU: one part that no two rows share, no soft-cap and no sinks. Everything else (several
parts, single tokens, float32, CPU, where the einsum is as fast) stays in ``attention.py``.
"""

import jax
import jax.numpy as jnp

_HALF = (jnp.bfloat16, jnp.float16)
_LARGEST_HEAD = 128  # of cuDNN's kernel on every generation that has one


def serves(q, parts, *, softcap=None, sinks=None, platform: str | None = None) -> bool:
    """Whether the cuDNN kernel computes this attention; decided by shapes, when it is traced.

    Args:
      q: [B, T, K, R, H].
      parts: (k [P, K, H, S], v [P, K, S, H]) each.
      softcap: see ``attention.attend_masked``.
      sinks: likewise.
      platform: jax's name of the backend; the default one's by default.
    """
    platform = jax.default_backend() if platform is None else platform
    batch, length, _, _, head_dim = q.shape
    return (
        platform in ("gpu", "cuda") and len(parts) == 1 and parts[0][0].shape[0] == batch
        and length > 1 and q.dtype in _HALF and head_dim <= _LARGEST_HEAD and head_dim % 8 == 0
        and softcap is None and sinks is None
    )  # fmt: skip


def fused(q, k, v, mask, *, scale: float, implementation: str = "cudnn"):
    """Attention of one part; a query that may see nothing gets 0 (B10).

    Args:
      q: [B, T, K, R, H].
      k: [B, K, H, S].
      v: [B, K, S, H].
      mask: [B, 1, T, S] bool.
      scale: of the scores.
      implementation: "cudnn", or "xla", which computes the same anywhere.

    Returns: [B, T, K, R, H], q's dtype.
    """
    batch, length, heads, share, head_dim = q.shape
    out = jax.nn.dot_product_attention(
        q.reshape(batch, length, heads * share, head_dim),
        k.transpose(0, 3, 1, 2).astype(q.dtype), v.transpose(0, 2, 1, 3).astype(q.dtype),
        mask=mask, scale=scale, implementation=implementation,
    )  # fmt: skip
    seen = mask.any(-1)[:, 0, :, None, None, None]
    return jnp.where(seen, out.reshape(q.shape), 0).astype(q.dtype)
