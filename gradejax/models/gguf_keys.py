"""Metadata entries of a GGUF file that bear on what the model computes: data, and their check.

llama.cpp reads an architecture's entries where it has a use for them and passes over the rest. Here
each one is read, is known to change nothing, holds the value that changes nothing, or is an error.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Names behind "{architecture}.". Read in every architecture:
READ = frozenset({
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon",
    "attention.scale", "attention.sliding_window", "attention.key_length_swa",
    "attention.value_length_swa", "embedding_length_out", "rope.dimension_count",
    "rope.dimension_count_swa", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor", "rope.scale_linear", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
})  # fmt: skip
# Read in some; elsewhere held to what NEUTRAL says.
READ_BY = {
    "gemma2": {"attn_logit_softcapping", "final_logit_softcapping",
               "attention.sliding_window_pattern"},
    "gemma3": {"final_logit_softcapping", "attention.sliding_window_pattern"},
}  # fmt: skip
# The size is the embedding's; pooling is for sentences; the others are notes about the file.
INERT = frozenset({
    "vocab_size", "pooling_type", "rope.scaling.finetuned", "decoder_start_token_id",
})  # fmt: skip
_ONE, _ZERO_OR_ONE = (1,), (0, 1)  # llama.cpp takes a scale of 0 as none
# What the other known ones must hold. An entry that stands in no table may be off: 0, false, empty.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,), "attention.max_alibi_bias": (0,),
    "attention.sliding_window_pattern": (0,), "attention.output_scale": _ZERO_OR_ONE,
    "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "embedding_scale": _ZERO_OR_ONE, "logit_scale": _ZERO_OR_ONE, "residual_scale": _ZERO_OR_ONE,
    "expert_count": (0,), "expert_used_count": (0,), "expert_weights_scale": _ZERO_OR_ONE,
    "rope.scaling.alpha": _ZERO_OR_ONE, "rope.scaling.yarn_attn_factor": _ONE,
    "rope.scaling.yarn_log_multiplier": (0,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "use_parallel_residual": (False,),
}  # fmt: skip


def _off(value: Any) -> bool:
    return value in ("", "none") or not np.any(value)


def check_keys(path, arch: str, entries: Mapping[str, Any], ignore: Iterable[str] = ()) -> None:
    """Refuse entries of the architecture that would be passed over and matter.

    Args:
      path: of the file, for messages.
      arch: the file's architecture.
      entries: all metadata; only what begins with the architecture's name is looked at.
      ignore: full names of unknown ones that are known to change nothing.

    Raises:
      ValueError: names the entry, its value and what is supported.
    """
    prefix, unknown = f"{arch}.", []
    if isinstance(ignore, str):
        raise ValueError(f"ignore must list names of settings, got {ignore!r}")
    if absent := sorted(set(ignore) - entries.keys()):
        raise ValueError(f"ignore names settings that {path} lacks: {', '.join(absent)}")
    read = READ | READ_BY.get(arch, set())
    for key, value in entries.items():
        name = key.removeprefix(prefix)
        known = name in read or name in NEUTRAL
        if key in ignore and known:
            raise ValueError(f"ignore is for settings that are not read here; {key} is")
        if not key.startswith(prefix) or name in read or name in INERT or key in ignore:
            continue
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                choices = " or ".join(map(repr, NEUTRAL[name]))
                raise ValueError(
                    f"{path}: {key} = {value!r} is not supported in a {arch} file; only {choices}"
                )
        elif not _off(value):
            unknown.append(f"{key}={value!r:.60}")
    if unknown:
        raise ValueError(
            f"{path} has metadata entries that this version does not know: {', '.join(unknown)}. "
            "If they do not change what the model computes, name them in ignore="
        )


def decimal(value: Any) -> float:
    """The shortest decimal that the stored float32 stands for: 1e-06, not 9.99999997e-07."""
    return float(str(np.float32(value)))


class Metadata:
    """Entries ``{architecture}.*`` of a file; a missing one is an error unless it may be."""

    def __init__(self, file, arch: str):
        self._file, self.arch = file, arch

    def get(self, name: str, default: Any = None) -> Any:
        return self._file.get(f"{self.arch}.{name}", default)

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ValueError(f"{self._file.path} lacks the metadata entry {self.arch}.{name}")
        return value

    def _wrong(self, name: str, expected: str) -> ValueError:
        value = self.get(name)
        return ValueError(f"{self._file.path}: {self.arch}.{name} must be {expected}, "
                          f"got {value!r:.100}")  # fmt: skip

    def number(self, name: str, least: int = 1) -> int:
        """One whole number; a list that says another one for some layer is an error."""
        value = self[name]
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(
                    f"{self._file.path}: {self.arch}.{name} differs from layer to layer "
                    f"({value[:8]}...), which is not supported"
                )
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
        return value

    def real(self, name: str, default: float | None = None, above: float = -math.inf) -> float:
        """One finite number; the default where the file lacks it."""
        value = self[name] if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (
            math.isfinite(value) and value > above
        ):  # fmt: skip
            raise self._wrong(name, "a finite number" + (f" > {above:g}" if above > -9 else ""))
        return decimal(value)

    def same(self, name: str, expected: float) -> None:
        """Refuse an entry, where it is given, that says another value than what is computed."""
        value = self.get(name)
        if value is not None and not math.isclose(self.real(name), expected, rel_tol=1e-5):
            raise ValueError(
                f"{self._file.path}: {self.arch}.{name} = {value!r} is not supported; this "
                f"model's is {expected:g}"
            )
