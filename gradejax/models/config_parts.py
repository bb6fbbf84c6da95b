"""Rotary and window settings of a ``config.json``, in all their spellings, read and written."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradejax.models.families import FAMILIES, Family
from gradejax.models.rotary import ROPE_TYPES, Rope

PARTIAL = ("phi3",)  # families whose heads may turn in part

_ROPE_KEYS = {
    "rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "partial_rotary_factor", "attention_factor", "beta_fast",
    "beta_slow", "truncate", "mscale", "mscale_all_dim", "short_factor", "long_factor",
}  # fmt: skip
_ROPE_NEEDS = {
    "dynamic": ("factor",), "linear": ("factor",), "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "default": (), "yarn": (),
}  # fmt: skip


def _rope(raw: Mapping[str, Any], entry: Mapping[str, Any], theta: float) -> Rope:
    """One rotary embedding of a resolved config; ``entry`` is its scaling."""
    family, entry = raw["model_type"], {k: v for k, v in entry.items() if v is not None}
    kind = entry.get("rope_type", entry.get("type", "default"))
    if family == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # its names for it before transformers had one
    if kind not in ROPE_TYPES:
        raise ValueError(f"unsupported rope type {kind!r}; supported: {', '.join(ROPE_TYPES)}")
    if unknown := sorted(entry.keys() - _ROPE_KEYS):
        raise ValueError(
            f"rope settings {', '.join(unknown)} are not known; known: {sorted(_ROPE_KEYS)}"
        )
    if missing := [k for k in _ROPE_NEEDS[kind] if k not in entry]:
        raise ValueError(f"rope type {kind!r} needs a {', '.join(missing)}, got {entry}")
    partial = float(entry.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)))
    if partial != 1.0 and family not in PARTIAL:
        raise ValueError(
            f"partial_rotary_factor={partial} of a {family} model is not supported; supported in: "
            f"{', '.join(PARTIAL)}"
        )
    longest = int(raw.get("max_position_embeddings", 2048))
    old = raw.get("original_max_position_embeddings") or entry.get(
        "original_max_position_embeddings", longest
    )
    # transformers' dynamic scaling starts at max_position_embeddings, whatever else is said.
    old = longest if kind == "dynamic" else int(old)
    scaled = kind in ("yarn", "longrope")
    factor = float(entry.get("factor", longest / old if scaled else 1.0))
    attention = entry.get("attention_factor")
    rope = Rope(theta=float(entry.get("rope_theta", theta)), kind=kind, partial=partial)
    if kind == "default":
        return dataclasses.replace(rope, original_max_positions=longest)
    return dataclasses.replace(
        rope, factor=factor, original_max_positions=old,
        low_freq_factor=float(entry.get("low_freq_factor", 1.0)),
        high_freq_factor=float(entry.get("high_freq_factor", 4.0)),
        attention_factor=None if attention is None else float(attention),
        beta_fast=float(entry.get("beta_fast") or 32), beta_slow=float(entry.get("beta_slow") or 1),
        truncate=bool(entry.get("truncate", True)), mscale=float(entry.get("mscale", 0)),
        mscale_all_dim=float(entry.get("mscale_all_dim", 0)),
        short_factor=tuple(map(float, entry.get("short_factor", ()))),
        long_factor=tuple(map(float, entry.get("long_factor", ()))),
    )  # fmt: skip


def ropes_of(raw: Mapping[str, Any]) -> dict[str, Rope | None]:
    """``rope`` and ``local_rope`` from any of the spellings.

    transformers 5 writes ``rope_parameters``, theta inside, for gemma 3 one for each kind of layer;
    4 wrote ``rope_scaling`` with ``rope_theta`` (and ``rope_local_base_freq``) beside it.
    """
    theta = float(raw.get("rope_theta") or 10000.0)
    entry = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kinds = {"full_attention", "sliding_attention"} & entry.keys()
    local_theta = raw.get("rope_local_base_freq")
    if local_theta is None:
        if kinds:
            raise ValueError(
                f"rope_parameters by kind of layer is not supported in {raw['model_type']} models"
            )
        return {"rope": _rope(raw, entry, theta)}
    nested = entry if kinds else {"full_attention": entry}
    return {
        "rope": _rope(raw, nested.get("full_attention") or {}, theta),
        "local_rope": _rope(raw, nested.get("sliding_attention") or {}, float(local_theta)),
    }


def windows_of(raw: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """``sliding_window`` and ``sliding`` of a resolved config."""
    family, window = raw["model_type"], raw.get("sliding_window")
    flagged = family in ("qwen2", "qwen3")
    if "sliding_window" not in FAMILIES[family].keys or window is None:
        return {}
    if flagged and not raw.get("use_sliding_window", False):
        return {}  # such configs carry a window that only the flag turns on
    kinds = raw.get("layer_types")
    if kinds is not None:
        known = {"sliding_attention", "full_attention"}
        if odd := sorted(set(kinds) - known):
            raise ValueError(f"unsupported layer_types {odd}; supported: {sorted(known)}")
        sliding = tuple(k == "sliding_attention" for k in kinds)
    elif flagged:
        sliding = tuple(i >= raw["max_window_layers"] for i in range(layers))
    elif pattern := raw.get("sliding_window_pattern"):
        sliding = tuple(bool((i + 1) % pattern) for i in range(layers))
    else:
        sliding = ()
    if sliding and not any(sliding):
        return {}
    return {"sliding_window": int(window), "sliding": () if all(sliding) else sliding}


def window_entries(config, family: Family) -> dict[str, Any]:
    """The window's keys of a written config."""
    if "sliding_window" not in family.keys:
        return {}
    windowed = [config.window(i) is not None for i in range(config.num_layers)]
    raw: dict[str, Any] = {"sliding_window": config.sliding_window}
    if "layer_types" in family.keys:
        raw["layer_types"] = [
            "sliding_attention" if there else "full_attention" for there in windowed
        ]
    if "use_sliding_window" in family.keys:
        raw["use_sliding_window"] = any(windowed)
        raw["max_window_layers"] = 0 if any(windowed) else config.num_layers
        raw["sliding_window"] = config.sliding_window or 4096
    return raw


def _rope_entry(rope: Rope) -> dict[str, Any]:
    """``rope_parameters`` of one rotary embedding."""
    entry: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.partial != 1.0:
        entry["partial_rotary_factor"] = rope.partial
    if rope.kind == "default":
        return entry
    old = {"original_max_position_embeddings": rope.original_max_positions}
    attention = {} if rope.attention_factor is None else {"attention_factor": rope.attention_factor}
    scales = {k: getattr(rope, k) for k in ("mscale", "mscale_all_dim") if getattr(rope, k)}
    return entry | {"factor": rope.factor} | {
        "llama3": old | {"low_freq_factor": rope.low_freq_factor,
                         "high_freq_factor": rope.high_freq_factor},
        "yarn": old | attention | scales | {
            "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate},
        "longrope": old | attention | {"short_factor": list(rope.short_factor),
                                       "long_factor": list(rope.long_factor)},
    }.get(rope.kind, {})  # fmt: skip


def rope_entries(config, family: Family) -> dict[str, Any]:
    """The rotary keys of a written config."""
    rope, local = config.rope, config.local_rope
    if rope is None:
        return {}
    if local is not None:
        return {"rope_parameters": {"full_attention": _rope_entry(rope),
                                    "sliding_attention": _rope_entry(local)}}  # fmt: skip
    if rope.kind == "default" and "rope_scaling" not in family.defaults:
        entry = {"rope_theta": rope.theta}
        return entry if rope.partial == 1.0 else entry | {"partial_rotary_factor": rope.partial}
    raw: dict[str, Any] = {"rope_parameters": _rope_entry(rope)}
    if rope.kind == "longrope":
        raw["original_max_position_embeddings"] = rope.original_max_positions
    if rope.kind == "dynamic":
        raw["max_position_embeddings"] = rope.original_max_positions
    return raw
