"""Adapters in the files of Hugging Face PEFT: adapter_config.json + adapter_model.safetensors.

PEFT adapts whole modules of the torch model. Where a family fuses matrices (phi3's qkv_proj and
gate_up_proj, gpt2's c_attn) its adapter has one A, shared, and a B whose rows are stacked (T19).
Ours adapts q, k, v, gate, up apart, so reading repeats A and splits B; writing gives one A back if
they are still the same, else A's stacked and B block-diagonal, of the summed rank: both exact.
"""

import pathlib
import re
import warnings
from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradejax.models.config import DecoderConfig
from gradejax.models.lora import Lora, check_unpacked, target_sizes
from gradejax.models.lora_check import check_fits
from gradejax.models.peft_config import (
    CONFIG_FILE,
    listed,
    rank_and_scale,
    read_adapter_config,
    targeted,
)
from gradejax.models.saving import save_pair
from gradejax.models.tensor_check import check_values
from gradejax.models.weight_files import is_file, open_safetensors

WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."

# Modules of a layer, as torch names them, and the targets that each one covers, in row order.
_SPLIT = {
    "self_attn.q_proj": ("q",), "self_attn.k_proj": ("k",), "self_attn.v_proj": ("v",),
    "self_attn.o_proj": ("o",), "mlp.gate_proj": ("gate",), "mlp.up_proj": ("up",),
    "mlp.down_proj": ("down",),
}  # fmt: skip
_FUSED = {
    "self_attn.qkv_proj": ("q", "k", "v"), "self_attn.o_proj": ("o",),
    "mlp.gate_up_proj": ("gate", "up"), "mlp.down_proj": ("down",),
}  # fmt: skip
_GPT2 = {
    "attn.c_attn": ("q", "k", "v"), "attn.c_proj": ("o",), "mlp.c_fc": ("up",),
    "mlp.c_proj": ("down",),
}  # fmt: skip
_MODULES = {"phi3": ("model.layers", _FUSED), "gpt2": ("transformer.h", _GPT2)}


def adapter_modules(config: DecoderConfig) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Every module that an adapter of this decoder may have: torch's name → (layer, targets)."""
    stem, table = _MODULES.get(config.family, ("model.layers", _SPLIT))
    known = target_sizes(config)
    return {
        f"{stem}.{i}.{name}": (i, targets)
        for i in range(config.num_layers) for name, targets in table.items()
        if all(t in known for t in targets)
    }  # fmt: skip


def load_peft(path: str | pathlib.Path, config: DecoderConfig, dtype=jnp.float32) -> Lora:
    """One adapter as PEFT saved it.

    Where ``rank_pattern`` and ``alpha_pattern`` give modules scales of their own, what they differ
    by from the adapter's is put into B, so that ``Lora.scale`` serves every module.

    Args:
      path: folder with adapter_config.json and adapter_model.safetensors.
      config: the decoder it is for.
      dtype: of A and B.

    Returns:
      A ``Lora`` with one adapter; ``lora.stack`` puts several into one.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a method other than plain LoRA (DoRA, saved modules, embeddings, biases, ...), a
        module the decoder lacks, tensors that are missing, doubled, unknown or mis-shaped, or that
        do not fit the config's targets; values that are no finite floats in ``dtype``; a setting
        of another type or out of range.
    """
    folder = pathlib.Path(path)
    raw = read_adapter_config(folder)
    factors = _factors(folder)
    if not factors:
        raise ValueError(f"{folder / WEIGHTS_FILE} holds no tensors")
    modules, sizes = adapter_modules(config), target_sizes(config)
    wanted = targeted(raw, modules)
    if extra := sorted(factors.keys() - modules.keys()):
        names = sorted({name.rpartition(".")[2] for name in modules})
        raise ValueError(
            f"{folder} adapts modules that this {config.family} decoder lacks or keeps frozen: "
            f"{listed(extra)}; it has {', '.join(names)} in {config.num_layers} layers"
        )
    if factors.keys() != wanted:
        missing, more = sorted(wanted - factors.keys()), sorted(factors.keys() - wanted)
        raise ValueError(
            f"{folder}: the tensors do not fit target_modules and layers_to_transform; "
            f"without tensors: {listed(missing)}; not targeted: {listed(more)}"
        )
    _, scale = rank_and_scale(raw)
    tree: dict[str, dict[str, Any]] = {}
    for name, (a, b) in factors.items():
        layer, targets = modules[name]
        rank, own = rank_and_scale(raw, name)
        outs = [sizes[t][1] for t in targets]
        shapes = (rank, sizes[targets[0]][0]), (sum(outs), rank)
        if (a.shape, b.shape) != shapes:
            raise ValueError(
                f"{folder}: {name} has A {a.shape} and B {b.shape}; rank {rank} and this "
                f"{config.family} decoder ask for {shapes[0]} and {shapes[1]}"
            )
        b = b if own == scale else b.astype(np.float32) * (own / scale)
        for letter, array in (("A", a), ("B", b)):
            check_values(f"{name}.lora_{letter}", array, str(folder), dtype)
        rows = np.split(b, np.cumsum(outs)[:-1], axis=0)
        for target, part in zip(targets, rows, strict=True):
            entry = {"a": jnp.asarray(a.T[None], dtype), "b": jnp.asarray(part.T[None], dtype)}
            tree.setdefault(f"layers_{layer}", {})[target] = entry
    return Lora(tree=tree, weights=None, scale=jnp.asarray([scale], jnp.float32))


def warn_of_another_base(path: str | pathlib.Path, model: str) -> None:
    """Warn where an adapter names another base than ``model``, of the same shape as it may be.

    Names differ for one model too (a hub id, a folder, a snapshot), so it is no error, and only
    the last part of the adapter's ``base_model_name_or_path`` is looked for.
    """
    base = read_adapter_config(pathlib.Path(path)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip():
        return
    name = base.replace("\\", "/").rstrip("/").rpartition("/")[2]
    if name.lower() not in model.lower():
        warnings.warn(
            f"the adapter {path} was made for {base!r}, by its name another model than {model}; "
            "if it is, replies are of no worth", stacklevel=3,
        )  # fmt: skip


def save_peft(
    path: str | pathlib.Path, config: DecoderConfig, lora: Lora, adapter: int = 0, *,
    base: str | None = None,
) -> None:  # fmt: skip
    """Write one adapter so that PEFT reads it, under the family's own (fused) module names.

    Rank places that are zero in A and B (padding) are dropped; modules of another rank go into
    ``rank_pattern`` with an alpha that keeps the scale.

    Args:
      path: folder, made if missing.
      config: the decoder's shape.
      lora: adapters, not packed.
      adapter: which of them.
      base: folder or hub id of the base model, for ``base_model_name_or_path``.

    Raises:
      ValueError: no such adapter, nothing in it but zeros, or what the config's decoder lacks.
    """
    check_unpacked(lora)
    if not 0 <= adapter < lora.count:
        raise ValueError(f"no adapter {adapter}; choose from 0 to {lora.count - 1}")
    check_fits(lora.replace(weights=jnp.ones((1, lora.count))), config)  # a layer left out is lost
    if config.experts and any({"gate", "up", "down"} & set(e) for e in lora.tree.values()):
        raise ValueError(
            "adapters on the experts of a mixture (gate, up, down) are not supported; choose from "
            "q, k, v, o"
        )
    scale, tensors, ranks = np.float32(lora.scale[adapter]), {}, {}
    for name, (layer, targets) in adapter_modules(config).items():
        parts = {t: _live(lora.entry(layer).get(t), adapter) for t in targets}
        if all(p is None for p in parts.values()):
            continue
        a, b = _fuse([(parts[t], target_sizes(config)[t][1]) for t in targets])
        tensors[f"{PREFIX}{name}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{name}.lora_B.weight"] = np.ascontiguousarray(b)
        ranks[name] = a.shape[0]
    if not ranks:
        raise ValueError(f"adapter {adapter} holds nothing but zeros; there is nothing to write")
    rank = Counter(ranks.values()).most_common(1)[0][0]
    odd = {name: r for name, r in ranks.items() if r != rank}

    def alpha(rank: int) -> float:
        """The shortest number that gives the same scale in float32: 2 and not 2.00000006."""
        value = float(scale) * rank
        for digits in range(1, 17):
            short = float(f"{value:.{digits}g}")
            if np.float32(short / rank) == scale:
                value = short
                break
        return int(value) if value.is_integer() and abs(value) < 1e15 else value

    raw = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
        "r": rank, "lora_alpha": alpha(rank), "lora_dropout": 0.0, "bias": "none",
        "use_rslora": False, "fan_in_fan_out": config.family == "gpt2", "inference_mode": True,
        "rank_pattern": odd, "alpha_pattern": {name: alpha(r) for name, r in odd.items()},
        "init_lora_weights": True, "modules_to_save": None, **_target_entries(config, ranks),
    }  # fmt: skip
    save_pair(path, WEIGHTS_FILE, tensors, CONFIG_FILE, raw)


def _factors(folder: pathlib.Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(A [r, in], B [out, r]) of each module in the file."""
    file = folder / WEIGHTS_FILE
    if not is_file(file):
        old = " (adapter_model.bin is not read; save it with safe_serialization)" if (
            folder / "adapter_model.bin").exists() else ""  # fmt: skip
        raise FileNotFoundError(f"{file} does not exist{old}")
    found: dict[str, dict[str, np.ndarray]] = {}
    unknown = []
    for name, tensor in open_safetensors(file).items():
        match = re.fullmatch(
            rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight", name
        )
        if match is None:
            unknown.append(name)
            continue
        factors = found.setdefault(match[1], {})
        if match[2] in factors:
            raise ValueError(f"{file} holds lora_{match[2]} of {match[1]} twice")
        factors[match[2]] = tensor()
    if unknown:
        why = "DoRA" if any("lora_magnitude" in n for n in unknown) else (
            "adapters of embeddings" if any("lora_embedding" in n for n in unknown)
            else "tensors other than lora_A and lora_B of linear modules")  # fmt: skip
        raise ValueError(f"{file} holds {why}, which is not supported: {listed(sorted(unknown))}")
    if half := sorted(name for name, factors in found.items() if len(factors) != 2):
        raise ValueError(f"{file} holds only one of lora_A and lora_B of {listed(half)}")
    return {name: (factors["A"], factors["B"]) for name, factors in found.items()}


def _live(entry, adapter: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(A [r, in], B [out, r]) of one adapter in float32 without its dead rank places."""
    if entry is None:
        return None
    a = np.asarray(entry["a"][adapter], np.float32).T
    b = np.asarray(entry["b"][adapter], np.float32).T
    kept = np.any(a != 0, axis=1) | np.any(b != 0, axis=0)
    return (a[kept], b[:, kept]) if kept.any() else None


def _fuse(parts) -> tuple[np.ndarray, np.ndarray]:
    """(A, B) of a module from its targets' ((A, B) or None, out) in row order."""
    there = [p for p, _ in parts if p is not None]
    a = there[0][0]
    if all(p[0].shape == a.shape and np.array_equal(p[0], a) for p in there):
        zeros = lambda out: np.zeros((out, len(a)), np.float32)  # noqa: E731
        return a, np.concatenate([zeros(out) if p is None else p[1] for p, out in parts])
    rank, at = sum(len(p[0]) for p in there), 0
    b = np.zeros((sum(out for _, out in parts), rank), np.float32)
    row = 0
    for part, out in parts:
        if part is not None:
            b[row : row + out, at : at + len(part[0])] = part[1]
            at += len(part[0])
        row += out
    return np.concatenate([p[0] for p in there]), b


def _target_entries(config: DecoderConfig, adapted) -> dict[str, Any]:
    """target_modules and layers_to_transform that name exactly the adapted modules."""
    modules = adapter_modules(config)
    layers = sorted({modules[name][0] for name in adapted})
    stem = _MODULES.get(config.family, ("model.layers",))[0]
    within = {name.removeprefix(f"{stem}.").partition(".")[2] for name in adapted}
    if len(adapted) != len(layers) * len(within):  # not the same modules in each layer
        return {"target_modules": sorted(adapted), "layers_to_transform": None}
    last = Counter(name.rpartition(".")[2] for name in _MODULES.get(
        config.family, ("", _SPLIT))[1])  # fmt: skip
    short = [n.rpartition(".")[2] if last[n.rpartition(".")[2]] == 1 else n for n in within]
    if len(layers) == config.num_layers:
        return {"target_modules": sorted(short), "layers_to_transform": None}
    return {"target_modules": sorted(short), "layers_to_transform": layers,
            "layers_pattern": stem.rpartition(".")[2]}  # fmt: skip
