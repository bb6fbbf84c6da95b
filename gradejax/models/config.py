"""A decoder's shape as data, read from a Hugging Face ``config.json``.

A family is a ``DecoderConfig`` and a table of weight names (``hf_weights``), nothing more: the
same module computes all of them. Whatever a config asks for that the module cannot compute is an
error that lists what it can, never a silent default.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from gradejax.models.config_check import check_entries

FAMILIES = ("llama", "phi3", "qwen2")
ROPE_TYPES = ("default", "linear", "llama3")
ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "silu")


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary embedding: base, kind of scaling, and the scaling's numbers.

    ``llama3`` divides low frequencies by ``factor``, keeps high ones and blends between
    (Llama 3.1 release); ``linear`` divides all of them by ``factor``.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Everything that fixes a decoder's parameters and its arithmetic.

    Attributes:
      family: one of FAMILIES.
      vocab_size: rows of the embedding.
      width: E, size of the residual stream.
      num_layers: blocks.
      num_heads: N query heads.
      num_kv_heads: K key/value heads; N is a multiple of K.
      head_dim: H.
      mlp_width: hidden size of the gated MLP.
      max_positions: longest sequence the model was made for, in tokens.
      norm_eps: epsilon of RMSNorm.
      activation: one of ACTIVATIONS.
      qkv_bias: whether q, k and v carry a bias (qwen2 always does, fault D05).
      out_bias: whether o carries a bias (llama's ``attention_bias``).
      mlp_bias: whether the MLP's matrices carry biases (llama's ``mlp_bias``).
      tied: whether the head is the embedding.
      sliding_window: keys a query may see, itself included; None sees all.
      rope: rotary embedding.
      stop_ids: ids that end a reply according to this config alone.
    """

    family: str
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    norm_eps: float = 1e-6
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    sliding_window: int | None = None
    rope: Rope = Rope()
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ValueError(
                f"unsupported model_type {self.family!r}; supported: {', '.join(FAMILIES)}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"unsupported hidden_act {self.activation!r}; supported: {', '.join(ACTIVATIONS)}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")


def ids_of(value: Any) -> tuple[int, ...]:
    """Token ids of a config entry that may be absent, an int or a list of ints."""
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    return tuple(int(v) for v in value)


def _rope(raw: Mapping[str, Any]) -> Rope:
    # transformers 5 writes `rope_parameters` (theta inside); 4 wrote `rope_theta` + `rope_scaling`.
    entry = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(entry.get("rope_theta", raw.get("rope_theta", 10000.0)))
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"unsupported rope type {kind!r}; supported: {', '.join(ROPE_TYPES)}")
    if raw.get("partial_rotary_factor", entry.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("partial_rotary_factor other than 1.0 is not supported")
    if kind != "default" and "factor" not in entry:
        raise ValueError(f"rope type {kind!r} needs a factor, got {entry}")
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(entry.get("factor", 1.0)),
        low_freq_factor=float(entry.get("low_freq_factor", 1.0)),
        high_freq_factor=float(entry.get("high_freq_factor", 4.0)),
        original_max_positions=int(
            entry.get(
                "original_max_position_embeddings", raw.get("max_position_embeddings", 8192)
            )
        ),
    )


def decoder_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Read a Hugging Face config.

    Args:
      raw: the parsed ``config.json``.

    Raises:
      ValueError: a missing key, an entry of another type or out of range, or a model type, rope
        type or activation that is not supported; the message names the choices.
    """
    check_entries(raw)
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"unsupported model_type {family!r}; supported: {', '.join(FAMILIES)}"
        )
    needed = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size",
    )  # fmt: skip
    missing = [k for k in needed if k not in raw]
    if missing:
        raise ValueError(f"config.json of a {family} model lacks {', '.join(missing)}")
    heads = int(raw["num_attention_heads"])
    width = int(raw["hidden_size"])
    window = raw.get("sliding_window")
    if family == "qwen2" and not raw.get("use_sliding_window", False):
        window = None  # qwen2 configs carry a window that only the flag turns on
    if family == "llama":
        window = None
    if window is not None and family == "qwen2":
        kinds = raw.get("layer_types") or ["sliding_attention"]
        if len(set(kinds)) > 1 or raw.get("max_window_layers", 0) not in (
            0,
            raw["num_hidden_layers"],
        ):
            raise ValueError("qwen2 with sliding windows in only some layers is not supported")
        if set(kinds) == {"full_attention"}:
            window = None
    return DecoderConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        width=width,
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or width // heads),
        mlp_width=int(raw["intermediate_size"]),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        norm_eps=float(raw.get("rms_norm_eps", 1e-5 if family == "phi3" else 1e-6)),
        activation=raw.get("hidden_act", "silu"),
        qkv_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        out_bias=family == "llama" and bool(raw.get("attention_bias", False)),
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        # An omitted flag takes the family's own default: all three families are untied (D04).
        tied=bool(raw.get("tie_word_embeddings", False)),
        sliding_window=None if window is None else int(window),
        rope=_rope(raw),
        stop_ids=ids_of(raw.get("eos_token_id")),
    )


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Parse a JSON object; a torn file, or another value, is an error that names it."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(raw).__name__}")
    return raw


def huggingface_config(config: DecoderConfig, **extra: Any) -> dict[str, Any]:
    """The ``config.json`` of a decoder, readable by transformers; inverse of ``decoder_config``."""
    if config.rope.kind != "default":
        raise ValueError(f"writing rope type {config.rope.kind!r} is not supported; use 'default'")
    names = {"llama": "LlamaForCausalLM", "phi3": "Phi3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    raw = {
        "architectures": [names[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
    }
    if config.family == "llama":
        raw |= {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    if config.family == "phi3":
        raw["pad_token_id"] = None  # transformers' default, 32000, would lie outside a small vocab
    if config.head_dim * config.num_heads != config.width:
        raw["head_dim"] = config.head_dim
    if config.sliding_window is not None:
        raw["sliding_window"] = config.sliding_window
        if config.family == "qwen2":
            raw |= {"use_sliding_window": True, "max_window_layers": 0}
    if config.stop_ids:
        ids = config.stop_ids
        raw["eos_token_id"] = ids[0] if len(ids) == 1 else list(ids)
    return raw | extra
