"""PEFT's adapter_config.json: what plain LoRA reads of it, checked, and which modules it names."""

import math
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gradejax.models.config import read_json
from gradejax.models.weight_files import is_file

CONFIG_FILE = "adapter_config.json"

# Settings that do not change what a trained adapter computes; any other that is set is refused.
_HARMLESS = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config",
    "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha",
    "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "modules_to_save",
    "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
# Starts that also change the base's weights, which an adapter file alone does not hold.
_MOVES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_DEFAULTS = {"r": 8, "lora_alpha": 8, "rank_pattern": {}, "alpha_pattern": {}}


def _rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: Any) -> bool:
    # Within float32, which scales are; a huge int has no float at all.
    return isinstance(value, int | float) and not isinstance(value, bool) and (
        abs(value) < 3e38 and math.isfinite(value)
    )  # fmt: skip


def _pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return isinstance(value, str) and bool(value)


def _by_pattern(value: Any, fits) -> bool:
    return isinstance(value, Mapping) and all(_pattern(k) and fits(v) for k, v in value.items())


def _modules(value: Any) -> bool:
    """A pattern, or a list of names."""
    return _pattern(value) or (
        isinstance(value, list) and all(isinstance(v, str) and v for v in value)
    )


def _layer(value: Any) -> bool:
    return value == 0 and value is not False or _rank(value)


_LISTED = "a list of names of modules or a regular expression"
# What each setting that is read must be, where it is not null.
_FITS = (
    (("r",), _rank, "a whole number of at least 1"),
    (("lora_alpha",), lambda v: _number(v) and v != 0, "a finite number other than 0"),
    (("rank_pattern",), lambda v: _by_pattern(v, _rank),
     "an object of regular expressions and whole numbers of at least 1"),
    (("alpha_pattern",), lambda v: _by_pattern(v, _number),
     "an object of regular expressions and finite numbers"),
    (("target_modules", "exclude_modules"), lambda v: _modules(v) or not v and v != 0, _LISTED),
    (("layers_to_transform",),
     lambda v: _layer(v) or isinstance(v, list) and all(map(_layer, v)),
     "a layer's number, from 0, or a list of them"),
    (("use_rslora", "use_dora", "fan_in_fan_out"), lambda v: isinstance(v, bool), "true or false"),
)  # fmt: skip


def listed(names: list[str]) -> str:
    """The first six of them, for a message."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (", ".join(names[:6]) or "none") + more


def read_adapter_config(folder: pathlib.Path) -> dict[str, Any]:
    """The settings of a folder's adapter, with PEFT's defaults for what decides its scale.

    ``fan_in_fan_out`` says how the base stores a matrix, which is known here from its family.

    Raises:
      FileNotFoundError: no adapter_config.json.
      ValueError: what plain LoRA does not compute, or a setting of another type or out of range;
        the message names it, what it holds and what is expected.
    """
    file = folder / CONFIG_FILE
    if not is_file(file):
        raise FileNotFoundError(
            f"{file} does not exist; expected the folder of a PEFT adapter, with {CONFIG_FILE} and "
            "adapter_model.safetensors"
        )
    raw = read_json(file)
    if raw.get("peft_type") != "LORA":
        kind = raw.get("peft_type")
        raise ValueError(f"{folder}: peft_type {kind!r} is not supported; only 'LORA'")
    raw |= {k: v for k, v in _DEFAULTS.items() if raw.get(k) is None}
    for keys, fits, expected in _FITS:
        for key in keys:
            if raw.get(key) is not None and not fits(raw[key]):
                raise ValueError(f"{file}: {key} must be {expected}, got {raw[key]!r:.200}")
    if raw.get("bias", "none") != "none":
        raise ValueError(f"{folder}: bias={raw['bias']!r} is not supported; only 'none'")
    if raw.get("use_dora"):
        raise ValueError(f"{folder}: DoRA (use_dora) is not supported; only plain LoRA")
    if raw.get("modules_to_save"):
        raise ValueError(
            f"{folder}: modules_to_save={raw['modules_to_save']} is not supported: the base stays "
            "frozen, embedding and head included"
        )
    start = raw.get("init_lora_weights", True)
    if isinstance(start, str) and start.startswith(_MOVES_BASE):
        raise ValueError(
            f"{folder}: init_lora_weights={start!r} also changes the base's weights; convert the "
            "adapter to plain LoRA first (PEFT: path_initial_model_for_weight_conversion)"
        )
    if odd := sorted(k for k, v in raw.items() if v and k not in _HARMLESS):
        raise ValueError(f"{folder}: settings that plain LoRA does not have: {listed(odd)}")
    if not raw.get("target_modules"):
        raise ValueError(f"{folder}: {CONFIG_FILE} has no target_modules")
    if isinstance(raw["target_modules"], str) and raw.get("layers_to_transform") is not None:
        raise ValueError(
            f"{file}: layers_to_transform={raw['layers_to_transform']} goes with a list of "
            f"target_modules only, as in PEFT; got {raw['target_modules']!r}"
        )
    return raw


def targeted(raw: Mapping[str, Any], modules: Mapping[str, tuple[int, Any]]) -> set[str]:
    """The modules that target_modules, exclude_modules and layers_to_transform name together.

    Args:
      raw: of ``read_adapter_config``.
      modules: name → (layer, ...) of all that there are.
    """
    targets, excluded = raw["target_modules"], raw.get("exclude_modules") or []
    layers = raw.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) else layers

    def named(rule: str | Iterable[str], name: str) -> bool:
        if isinstance(rule, str):
            return rule == "all-linear" or re.fullmatch(rule, name) is not None
        return any(name == t or name.endswith(f".{t}") for t in rule)

    return {
        name for name, (layer, _) in modules.items()
        if named(targets, name) and (not layers or layer in layers)
        and not (excluded and named(excluded, name))
    }  # fmt: skip


def rank_and_scale(raw: Mapping[str, Any], name: str | None = None) -> tuple[int, float]:
    """(rank, scale) of a module, or of the adapter as a whole."""

    def of(key: str, default: str):
        # The first pattern that fits the end of the name, as in PEFT.
        fits = (v for p, v in raw[key].items() if re.fullmatch(rf"(.*\.)?({p})", name or ""))
        return next(fits, raw[default]) if name else raw[default]

    rank, alpha = of("rank_pattern", "r"), of("alpha_pattern", "lora_alpha")
    return rank, alpha / (rank**0.5 if raw.get("use_rslora") else rank)
