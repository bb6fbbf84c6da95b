"""Rotary scaling of a GGUF file: from its metadata and its tables of divisors."""

import math
from typing import Any

import numpy as np

from gradejax.models.gguf_keys import Metadata, decimal

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _llama3_factors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """What llama.cpp's converter writes for Llama 3's rope (low 1, high 4, 8192 positions)."""
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = 8192 * frequencies / (2 * math.pi)
    keep = np.clip((turns - 1) / (4 - 1), 0, 1)
    return 1 / ((1 - keep) / factor + keep)


def _divisors(file, name: str, rotary: int) -> np.ndarray:
    """The tensor ``name``, a positive divisor of each rotary pair's speed."""
    found = np.asarray(file.tensors[name](), np.float64)
    if found.shape != (rotary // 2,):
        raise ValueError(
            f"{file.path}: {name} has shape {found.shape}, {rotary} rotary dimensions ask for "
            f"({rotary // 2},)"
        )
    if not (np.isfinite(found) & (found > 0)).all():
        raise ValueError(f"{file.path}: {name} must hold finite numbers > 0, got {found.tolist()}")
    return found


def rope_scaling(file, meta: Metadata, rotary: int, theta: float) -> dict[str, Any] | None:
    """``rope_scaling`` of a config, None for positions as they are.

    Args:
      file: a ``gguf.GgufFile``.
      meta: its architecture's entries.
      rotary: entries of a head that turn.
      theta: the base.

    Raises:
      ValueError: a scaling that is not supported, or whose entries or tables contradict.
    """
    kind = meta.get("rope.scaling.type")
    # A factor of 0 says nothing, as in llama.cpp.
    said = [n for n in ("rope.scaling.factor", "rope.scale_linear") if meta.get(n)]
    factor = meta.real(said[0], above=0) if said else 1.0
    strength = meta.real("rope.scaling.attn_factor", 1.0)
    supported = "supported: none, linear, yarn, and the tables of llama3 and longrope"
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise ValueError(f"{file.path}: unsupported rope scaling {kind!r}; {supported}")
    extra = meta.real("rope.scaling.yarn_ext_factor", -1.0)  # below 0: what the type asks for
    if extra >= 0 and extra != float(kind == "yarn"):
        raise ValueError(
            f"{file.path}: rope.scaling.yarn_ext_factor = {extra:g} of a rope scaling {kind!r} is "
            "not supported; only 1 with yarn and 0 without"
        )
    at = {}
    if meta.get("rope.scaling.original_context_length") is not None:
        original = meta.number("rope.scaling.original_context_length")
        at = {"original_max_position_embeddings": original}
    tables = [t for t in ROPE_TENSORS if t in file.tensors]
    if tables and (kind == "yarn" or factor != 1):
        raise ValueError(
            f"{file.path} has {', '.join(tables)} and a rope scaling {kind!r} by {factor:g} too; "
            f"{supported}, one of them"
        )
    if "rope_freqs.weight" in tables:
        divisors = _divisors(file, "rope_freqs.weight", rotary)
        factor = decimal(divisors[-1])
        if strength == 1 and np.allclose(
            divisors, _llama3_factors(rotary, theta, factor), rtol=1e-5, atol=0
        ):
            return {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
        # Any other table of divisors is, as arithmetic, a longrope whose two tables are equal.
        table = divisors.tolist()
        return {"rope_type": "longrope", "short_factor": table, "long_factor": table,
                "attention_factor": strength, **at}  # fmt: skip
    if tables:
        if len(tables) != 2:
            raise ValueError(f"{file.path} has {tables[0]}, but not the other of longrope's tables")
        found = {f"{word}_factor": _divisors(file, f"rope_factors_{word}.weight", rotary).tolist()
                 for word in ("short", "long")}  # fmt: skip
        if meta.get("rope.scaling.attn_factor") is not None:  # else longrope's own formula
            found["attention_factor"] = strength
        return {"rope_type": "longrope", **found, **at}
    if kind == "longrope":
        raise ValueError(f"{file.path} says rope scaling 'longrope' and lacks its tables")
    if kind == "yarn":
        if not said:
            raise ValueError(f"{file.path} says rope scaling 'yarn' and no rope.scaling.factor")
        ramp = {f"beta_{word}": meta.real(f"rope.scaling.yarn_beta_{word}", above=0)
                for word in ("fast", "slow")
                if meta.get(f"rope.scaling.yarn_beta_{word}") is not None}  # fmt: skip
        out = {"rope_type": "yarn", "factor": factor, **ramp, **at}
        if strength != 1:  # on top of yarn's own
            out["attention_factor"] = strength * (1 + 0.1 * math.log(max(factor, 1.0)))
        return out
    meta.same("rope.scaling.attn_factor", 1.0)
    if factor == 1:
        return None
    if kind == "none":
        raise ValueError(f"{file.path} says rope scaling 'none' and a factor of {factor:g}")
    return {"rope_type": "linear", "factor": factor}
