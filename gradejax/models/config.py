"""A decoder's shape as data, read from a Hugging Face ``config.json`` and written as one.

Whatever a config asks for that the module cannot compute is an error that lists what it can, never
a silent default.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from gradejax.models.config_check import check_entries, token_id
from gradejax.models.families import FAMILIES, family_of, resolved
from gradejax.models.rope_settings import rope_entries, ropes_of
from gradejax.models.rotary import Rope
from gradejax.models.window_settings import window_entries, windows_of

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "silu")
NORMS = ("layer", "rms", "rms_plus_one")


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
      mlp_width: hidden size of the MLP, of each expert where there are some.
      max_positions: longest sequence the model was made for, in tokens.
      norm_eps: epsilon of the norms.
      activation: one of ACTIVATIONS.
      qkv_bias: whether q, k and v carry a bias (qwen2 always does, fault D05).
      out_bias: whether o carries a bias.
      mlp_bias: whether the MLP's (or router's and experts') matrices carry biases.
      tied: whether the head is the embedding.
      sliding_window: keys a query may see, itself included; None sees all.
      sliding: for each layer, whether it has the window; () has it in all.
      rope: rotary embedding; None for a family with learned positions.
      local_rope: rotary embedding of the layers with a window, where it is another.
      norm: one of NORMS.
      post_norms: whether what attention and MLP give is normed as well (gemma 2 and 3).
      qk_norm: whether each head's query and key are normed (qwen3, gemma 3).
      attn_scale: of attention scores; None is head_dim^-1/2.
      attn_softcap: bends attention scores to ± this.
      final_softcap: bends logits to ± this.
      embed_scale: embeddings are multiplied by it, in the model's dtype.
      learned_positions: whether positions are embeddings of their own (gpt2).
      gated: whether the MLP is gated.
      sinks: whether each head has a sink (gpt_oss).
      experts: X experts in the place of the MLP, 0 for none.
      experts_per_token: k, those a token goes through.
      swiglu_limit: clamp of the experts' gate and up; None has the plain gated form.
      swiglu_alpha: steepness of the clamped form's gate.
      stop_ids: ids that end a reply according to this config alone; none where it names none
        (the id that transformers then takes is one of the family's first vocabulary alone).
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
    sliding: tuple[bool, ...] = ()
    rope: Rope | None = Rope()
    local_rope: Rope | None = None
    norm: str = "rms"
    post_norms: bool = False
    qk_norm: bool = False
    attn_scale: float | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None
    embed_scale: float | None = None
    learned_positions: bool = False
    gated: bool = True
    sinks: bool = False
    experts: int = 0
    experts_per_token: int = 0
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.702
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self):
        family_of({"model_type": self.family})
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"unsupported hidden_act {self.activation!r}; supported: {', '.join(ACTIVATIONS)}"
            )
        if self.norm not in NORMS:
            raise ValueError(f"unsupported norm {self.norm!r}; supported: {', '.join(NORMS)}")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                rope.check_width(self.head_dim)
        if self.sliding and len(self.sliding) != self.num_layers:
            raise ValueError(
                f"layer_types lists {len(self.sliding)} layers, the model has {self.num_layers}"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"num_experts_per_tok={self.experts_per_token} must lie in 1 to {self.experts}, "
                "the experts there are"
            )

    def window(self, layer: int) -> int | None:
        """Keys a query of this layer may see, itself included; None sees all."""
        if self.sliding and not self.sliding[layer]:
            return None
        return self.sliding_window

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary embedding of this layer."""
        local = self.local_rope is not None and self.window(layer) is not None
        return self.local_rope if local else self.rope


def ids_of(value: Any) -> tuple[int, ...]:
    """Token ids of a config entry that may be absent, an int or a list of ints.

    Raises:
      ValueError: anything else; the characters of "12" are not ids.
    """
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if not all(map(token_id, ids)):
        raise ValueError(f"expected a token id or a list of token ids, got {value!r:.200}")
    return tuple(int(i) for i in ids)


def decoder_config(raw: Mapping[str, Any], ignore=()) -> DecoderConfig:
    """Read a Hugging Face config.

    Args:
      raw: the parsed ``config.json``.
      ignore: keys that are known not to change the arithmetic.

    Raises:
      ValueError: a missing or unknown key, an entry of another type or out of range, or a model
        type, rope type, activation or other setting that is not supported; the message names the
        choices.
    """
    check_entries(raw)
    family, raw = family_of(raw), resolved(raw, ignore)
    name = raw["model_type"]
    needed = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
    needed += [] if name == "gpt2" else ["intermediate_size"]
    if missing := [k for k in needed if k not in raw]:
        raise ValueError(f"config.json of a {name} model lacks {', '.join(missing)}")
    heads, width = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    layers = int(raw["num_hidden_layers"])
    gemma, bias = name.startswith("gemma"), bool(raw.get("attention_bias", False))
    named = "hidden_activation" if "hidden_activation" in family.keys else "hidden_act"
    activation = raw[named]
    if name == "gemma" and activation == "gelu":
        activation = "gelu_pytorch_tanh"  # gemma's first configs said gelu and meant this
    if "head_dim" not in raw and width % heads:
        raise ValueError(
            f"hidden_size={width} is no multiple of num_attention_heads={heads}, and there is no "
            "head_dim"
        )
    scalar = raw.get("query_pre_attn_scalar")
    fields: dict[str, Any] = {
        "qkv_bias": bias, "out_bias": bias, "mlp_bias": bool(raw.get("mlp_bias", False)),
        "attn_scale": None if scalar is None else float(scalar) ** -0.5,
        "attn_softcap": raw.get("attn_logit_softcapping"),
        "final_softcap": raw.get("final_logit_softcapping"),
        "embed_scale": width**0.5 if gemma else None,
        "experts": int(raw.get("num_local_experts", 0)),
        "experts_per_token": int(raw.get("num_experts_per_tok", 0)),
        "swiglu_limit": raw.get("swiglu_limit"),
    }  # fmt: skip
    if "swiglu_alpha" in raw:
        fields["swiglu_alpha"] = float(raw["swiglu_alpha"])
    fields |= windows_of(raw, layers) | dict(family.sets)
    if "rope" not in family.sets:
        fields |= ropes_of(raw)
    longest = int(raw["max_position_embeddings"])
    if fields["rope"] is not None and fields["rope"].kind == "dynamic":
        longest = int(longest * max(1.0, fields["rope"].factor))
        if longest >= 2**31:
            raise ValueError(
                f"max_position_embeddings times the dynamic factor {fields['rope'].factor} must be "
                f"less than 2**31, got {longest}"
            )
    return DecoderConfig(
        family=name,
        vocab_size=int(raw["vocab_size"]),
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or width // heads),
        mlp_width=int(raw.get("intermediate_size") or 4 * width),
        max_positions=longest,
        norm_eps=float(raw["rms_norm_eps"]),
        activation=activation,
        # An omitted flag takes the family's own default (D04).
        tied=bool(raw.get("tie_word_embeddings", False)),
        stop_ids=ids_of(raw.get("eos_token_id")),
        **fields,
    )


def huggingface_config(config: DecoderConfig, **extra: Any) -> dict[str, Any]:
    """The ``config.json`` of a decoder, readable by transformers; inverse of ``decoder_config``."""
    c, family = config, FAMILIES[config.family]
    scalar = c.head_dim if c.attn_scale is None else round(c.attn_scale**-2, 6)
    # Of these a family writes what it reads.
    own = {
        "attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        "hidden_activation": c.activation,
        "attn_logit_softcapping": c.attn_softcap, "final_logit_softcapping": c.final_softcap,
        "num_local_experts": c.experts, "num_experts_per_tok": c.experts_per_token,
        "swiglu_limit": c.swiglu_limit, "swiglu_alpha": c.swiglu_alpha,
    }  # fmt: skip
    raw = {
        "architectures": [family.architecture],
        "model_type": c.family,
        "vocab_size": c.vocab_size,
        "hidden_size": c.width,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "intermediate_size": c.mlp_width,
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "hidden_act": c.activation,
        "tie_word_embeddings": c.tied,
    }
    raw |= {k: v for k, v in own.items() if k in family.keys}
    raw |= window_entries(c, family) | rope_entries(c, family)
    if c.family == "phi3":
        raw["pad_token_id"] = None  # transformers' default, 32000, would lie outside a small vocab
    if c.head_dim * c.num_heads != c.width or "head_dim" in family.defaults:
        raw["head_dim"] = c.head_dim
    # A null where there is none: without the key transformers has an id of its own.
    raw["eos_token_id"] = c.stop_ids[0] if len(c.stop_ids) == 1 else list(c.stop_ids) or None
    names = {to: name for name, to in family.aliases.items() if to not in family.keys}
    raw = {names.get(k, k): v for k, v in raw.items() if k in names or k not in family.foreign}
    return raw | extra


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
    """Parse a JSON object (or list: ``kind``); a torn file, or another value, is an error."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, kind):
        wanted = "object" if kind is dict else kind.__name__
        raise ValueError(f"{path}: expected a JSON {wanted}, got {type(raw).__name__}")
    return raw
