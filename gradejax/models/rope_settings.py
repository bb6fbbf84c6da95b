"""Rotary settings of a ``config.json``, in all their spellings, read and written.

transformers 5 writes ``rope_parameters``, theta inside, for gemma 3 one for each kind of layer; 4
wrote ``rope_scaling`` with ``rope_theta`` (and ``rope_local_base_freq``) beside it. Where one file
has both, transformers takes one of them without a word; here they must agree.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradejax.models.config_check import (
    Rule,
    check,
    flag,
    in_range,
    number,
    positive,
    positives,
    whole,
)
from gradejax.models.families import FAMILIES, Family
from gradejax.models.rotary import ROPE_TYPES, Rope
from gradejax.models.window_settings import LAYER_TYPES

PARTIAL = ("phi3",)  # families whose heads may turn in part

# What each type needs, and what else it reads.
_NEEDS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}  # fmt: skip
_READS = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"),
    "longrope": ("factor", "attention_factor"),
}
# Every type has these. The last two are facts about how the model was made, and no setting.
_ALWAYS = ("rope_theta", "rope_type", "type", "partial_rotary_factor",
           "original_max_position_embeddings", "finetuned")  # fmt: skip
# Passed over, as by transformers: DeepSeek-R1-0528-Qwen3-8B has it beside a factor of 4, and cos
# and sin are multiplied by 1.1386 there. (vLLM multiplies by attn_factor besides.)
_PASSED_OVER = {"yarn": ("attn_factor",)}
_KNOWN = {*_ALWAYS, *sum(_NEEDS.values(), ()), *sum(_READS.values(), ())}

_RULES: tuple[Rule, ...] = (
    *positives(("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "attention_factor",
                "beta_fast", "beta_slow")),
    (("partial_rotary_factor",), lambda v: positive(v) and v <= 1, "a number > 0, at most 1"),
    (("mscale", "mscale_all_dim"), lambda v: number(v) and 0 <= v <= 1e30,
     "a finite number >= 0"),
    (("original_max_position_embeddings",), whole, "a whole number of at least 1"),
    (("original_max_position_embeddings",), lambda v: v < 2**31, "less than 2**31"),
    (("truncate",), flag, "true or false"),
    (("rope_type", "type"), lambda v: isinstance(v, str), "a string"),
    (("short_factor", "long_factor"),
     lambda v: isinstance(v, list | tuple) and all(positive(x) and in_range(x) for x in v),
     "a list of finite numbers > 0"),
)  # fmt: skip


def _kind(family: str, table: Mapping[str, Any], where: str) -> str:
    """The rope type of a table, under today's name; read and known."""
    old = {"su": "longrope", "yarn": "longrope"} if family == "phi3" else {}
    said = {k: old.get(v, v) for k in ("rope_type", "type") if (v := table.get(k)) is not None}
    if len(set(said.values())) > 1:
        raise ValueError(f"{where} contradicts itself: {said}; expected one rope_type")
    kind, choices = next(iter(said.values()), "default"), ROPE_TYPES
    if family == "phi3":
        choices = ("default", "longrope")
    if kind not in choices:
        raise ValueError(
            f"unsupported rope type {kind!r}; supported in a {family} model: {', '.join(choices)}"
        )
    table = {k: v for k, v in table.items() if k not in _PASSED_OVER.get(kind, ())}
    if unknown := sorted(table.keys() - _KNOWN):
        raise ValueError(
            f"rope settings {', '.join(unknown)} are not known; known: {sorted(_KNOWN)}"
        )
    lacks = [k for k in _NEEDS[kind] if table.get(k) is None]
    if kind == "yarn" and "factor" in table:
        lacks = []  # a null: the ratio of the two contexts
    if lacks:
        raise ValueError(f"rope type {kind!r} needs a {', '.join(lacks)}, got {dict(table)}")
    read = {*_ALWAYS, *_NEEDS[kind], *_READS.get(kind, ())}
    idle = {k: v for k, v in table.items() if k not in read and v is not None}
    if kind == "default" and idle.get("factor") == 1:
        del idle["factor"]
    if idle:
        raise ValueError(
            f"{where} of rope type {kind!r} holds {idle}, which that type does not read; leave it "
            f"out, or name the rope_type that is meant: {', '.join(choices)}"
        )
    return kind


def _told(raw: Mapping[str, Any], key: str, table: Mapping[str, Any], inner: str, where: str):
    """What the config says beside its table or in it, None where it does not."""
    beside, inside = raw.get(key), table.get(inner)
    if beside is not None and inside is not None and beside != inside:
        raise ValueError(
            f"{key}={beside!r} and {inner}={inside!r} of {where} contradict each other; make them "
            f"equal or leave one out (a {raw['model_type']} config without {key} has its default)"
        )
    return beside if inside is None else inside


def _checked(rope: Rope, where: str) -> Rope:
    """A scaled rope whose numbers do not fit each other is an error."""
    if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        raise ValueError(
            f"{where}: low_freq_factor={rope.low_freq_factor} must be less than "
            f"high_freq_factor={rope.high_freq_factor}"
        )
    if rope.kind == "yarn" and rope.beta_fast < rope.beta_slow:
        raise ValueError(
            f"{where}: beta_fast={rope.beta_fast} must be at least beta_slow={rope.beta_slow}"
        )
    if rope.kind == "yarn" and rope.theta <= 1:
        raise ValueError(f"{where}: rope type 'yarn' needs a rope_theta above 1, got {rope.theta}")
    if rope.kind == "longrope" and rope.original_max_positions < 2:
        raise ValueError(
            f"{where}: rope type 'longrope' needs an original_max_position_embeddings of at least "
            f"2, got {rope.original_max_positions}"
        )
    return rope


def _rope(raw: Mapping[str, Any], where: str, table: Mapping[str, Any], key: str, theta: float):
    """One rotary embedding: ``table`` of a resolved config, its base under ``key`` beside it."""
    family = raw["model_type"]
    check(table, _RULES, f"{where}: ")
    kind = _kind(family, table, where)
    tell = lambda k: _told(raw, k, table, k, where)  # noqa: E731
    partial = float(tell("partial_rotary_factor") or 1.0)
    if partial != 1.0 and family not in PARTIAL:
        raise ValueError(
            f"partial_rotary_factor={partial} of a {family} model is not supported; supported in: "
            f"{', '.join(PARTIAL)}"
        )
    theta = float(_told(raw, key, table, "rope_theta", where) or theta)
    longest = int(raw["max_position_embeddings"])
    rope = Rope(theta=theta, kind=kind, partial=partial, original_max_positions=longest)
    if kind == "default":
        return rope
    if kind in ("linear", "dynamic"):
        # transformers' dynamic scaling starts at max_position_embeddings, whatever else is said.
        return dataclasses.replace(rope, factor=float(table["factor"]))
    old = int(tell("original_max_position_embeddings") or longest)
    if "truncate" in table and table["truncate"] is None:
        raise ValueError(f"{where}: truncate must be true or false, got None")
    given = {k: v for k, v in table.items() if v is not None}
    # factor, beta_fast and all others are called the same in the file and in a Rope.
    same = ({f.name for f in dataclasses.fields(Rope)} & given.keys()) - {"truncate"}
    numbers = {
        k: tuple(map(float, given[k])) if k.endswith(("short_factor", "long_factor"))
        else float(given[k]) for k in same
    }  # fmt: skip
    return _checked(
        dataclasses.replace(
            rope, original_max_positions=old, truncate=given.get("truncate", True),
            **{"factor": longest / old, **numbers},
        ),
        where,
    )  # fmt: skip


def _agreed(raw, tables: Mapping[str, Mapping[str, Any]], key: str, theta: float) -> Rope:
    """The rotary embedding that each of the named tables describes."""
    tables = {where: table for where, table in tables.items() if table} or {"the config": {}}
    ropes = {where: _rope(raw, where, table, key, theta) for where, table in tables.items()}
    if len(set(ropes.values())) > 1:
        both = " and ".join(f"{where}={dict(table)}" for where, table in tables.items())
        raise ValueError(
            f"{both} contradict each other ({key} and other entries beside them counted in); make "
            "them equal or leave one out"
        )
    return next(iter(ropes.values()))


def ropes_of(raw: Mapping[str, Any]) -> dict[str, Rope | None]:
    """``rope`` and ``local_rope`` of a resolved config from any of the spellings.

    Raises:
      ValueError: settings that are unknown, out of range, not read by their rope type, or that
        contradict each other; the message names both values.
    """
    name = raw["model_type"]
    family = FAMILIES[name]
    new, old = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    kinds = set(LAYER_TYPES)
    if family.local_theta is None:
        if kinds & (new.keys() | old.keys()):
            raise ValueError(f"rope_parameters by kind of layer is not supported in {name} models")
        tables = {"rope_parameters": new, "rope_scaling": old}
        return {"rope": _agreed(raw, tables, "rope_theta", family.theta)}
    # transformers passes over what lies beside the two kinds, so it cannot have been meant.
    if (odd := sorted(new.keys() - kinds)) or kinds & old.keys():
        raise ValueError(
            f"expected {' and '.join(LAYER_TYPES)} in rope_parameters of a {name} model, each with "
            "its own settings, or the full layers' settings in rope_scaling; got "
            + (f"rope_parameters with {', '.join(odd)}" if odd else f"rope_scaling={dict(old)}")
        )
    check(new, ((LAYER_TYPES, lambda v: isinstance(v, Mapping), "a JSON object"),),
          "rope_parameters: ")  # fmt: skip
    wide, near = (new.get(kind) or {} for kind in LAYER_TYPES)
    if any(table.get("truncate") is False for table in (wide, near, old)):
        raise ValueError(f"truncate=False of a {name} model is not supported; supported: True")
    tables = {"full_attention": wide, "rope_scaling": old}
    return {
        "rope": _agreed(raw, tables, "rope_theta", family.theta),
        "local_rope": _agreed(raw, {"sliding_attention": near}, "rope_local_base_freq",
                              family.local_theta),
    }  # fmt: skip


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
    # A dynamic rope's config names the context before scaling.
    short = {"max_position_embeddings": rope.original_max_positions}
    short = short if rope.kind == "dynamic" else {}
    if local is not None:
        return short | {"rope_parameters": {"full_attention": _rope_entry(rope),
                                            "sliding_attention": _rope_entry(local)}}  # fmt: skip
    if rope.kind == "default" and "rope_scaling" not in family.defaults:
        entry = {"rope_theta": rope.theta}
        return entry if rope.partial == 1.0 else entry | {"partial_rotary_factor": rope.partial}
    raw = short | {"rope_parameters": _rope_entry(rope)}
    if rope.kind == "longrope":
        raw["original_max_position_embeddings"] = rope.original_max_positions
    return raw
