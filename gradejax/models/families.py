"""The families of decoders, as data: what each assumes, reads and fixes in its config.json.

A family is a ``Family`` here and a table of weight names (``weight_names``), nothing more; one
module computes all of them. Keys of a config that nobody here reads are an error unless they are
known to change no arithmetic: a feature that is silently left out gives wrong text.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

# Read in every family.
COMMON_KEYS = frozenset({
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings",
    "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings", "eos_token_id",
})  # fmt: skip
# Change nothing of what a trained model computes: training, bookkeeping, other heads' settings.
INERT_KEYS = frozenset({
    "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "cache_implementation",
    "initializer_range", "bos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", "decoder_start_token_id", "attention_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "router_aux_loss_coef", "router_jitter_noise",
    "output_router_logits", "output_attentions", "output_hidden_states", "return_dict",
    "pretraining_tp", "task_specific_params", "id2label", "label2id", "problem_type", "auto_map",
    "is_llama_config", "name_or_path", "max_length", "temperature", "top_k", "top_p", "do_sample",
    "n_ctx", "unsloth_version", "unsloth_fixed", "transformers.js_config",
    "chunk_size_feed_forward",
    "is_encoder_decoder", "finetuning_task", "tokenizer_class", "prefix", "torchscript",
    "use_bfloat16", "reorder_and_upcast_attn", "initial_context_length", "experts_per_token",
    "attn_implementation", "num_experts", "gradient_checkpointing", "output_past",
    "max_sequence_length", "model_max_length", "predict_special_tokens", "num_logits_to_keep",
    "logits_to_keep", "neuron", "model_name", "unk_token_id", "keys_to_ignore_at_inference",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "min_length",
    "max_new_tokens", "num_beams", "num_beam_groups", "num_return_sequences", "length_penalty",
    "repetition_penalty", "typical_p",
    "max_window_layers",  # where a family has no use_sliding_window, which alone makes it count
})  # fmt: skip
INERT_PREFIXES = ("_", "summary_")
# Read by those families that have them; elsewhere only "off" is accepted.
OFF = (None, False, 0, "none", {}, [])
# What transformers takes for a missing key in the families that name no other value.
DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 2048}
# A null here means that there is none of it; of key heads, that each query head has its own.
NONE = ("sliding_window", "final_logit_softcapping", "attn_logit_softcapping",
        "num_key_value_heads")  # fmt: skip
# And here the same as no entry; elsewhere a null is no value that a default may stand for.
NULLABLE = (*NONE, "rope_scaling", "sliding_window_pattern")


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family fixes.

    Attributes:
      architecture: transformers' class, for ``architectures`` of a written config.
      defaults: what transformers 5.24 takes where the config lacks the key.
      keys: read beside COMMON_KEYS.
      foreign: of COMMON_KEYS, those that transformers does not read here.
      ignored: keys of released configs that transformers passes over here.
      only: further keys, with the values that are supported.
      sets: DecoderConfig fields that no key decides.
      aliases: this family's further names of keys.
      echoes: keys of released configs that transformers passes over, with the key they repeat.
      theta: the rotary base of a config without one.
      local_theta: likewise of the layers with a window; None where all layers share one base.
    """

    architecture: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    only: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    echoes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    theta: float = 10_000.0
    local_theta: float | None = None


_WINDOWS = frozenset({"sliding_window", "layer_types"})
_FLAGGED = _WINDOWS | {"use_sliding_window", "max_window_layers"}
_CAUSAL = {"use_bidirectional_attention": (None, False)}
_GEMMA = {"norm": "rms_plus_one"}
_ACTIVATION = frozenset({"hidden_act"})  # its name in gemma 2 and 3 is hidden_activation
_ROTARY = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
                     "original_max_position_embeddings"})  # fmt: skip
_EXPERTS = {"num_experts": "num_local_experts"}

FAMILIES: dict[str, Family] = {
    "gemma": Family(
        "GemmaForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 16,
                  "max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh"},
        keys=frozenset({"attention_bias"}), ignored=frozenset({"hidden_activation"}),
        only=_CAUSAL, sets=_GEMMA,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4,
                  "query_pre_attn_scalar": 256, "sliding_window": 4096,
                  "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
                  "max_position_embeddings": 8192, "sliding_window_pattern": 2,
                  "hidden_activation": "gelu_pytorch_tanh"},
        keys=_WINDOWS | {"attention_bias", "hidden_activation", "query_pre_attn_scalar",
                         "final_logit_softcapping", "attn_logit_softcapping"},
        ignored=_ACTIVATION, only=_CAUSAL | {"sliding_window_pattern": (2, None)},
        sets=_GEMMA | {"post_norms": True}, echoes={"sliding_window_size": "sliding_window"},
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4,
                  "query_pre_attn_scalar": 256, "sliding_window": 4096,
                  "max_position_embeddings": 131_072, "sliding_window_pattern": 6,
                  "hidden_activation": "gelu_pytorch_tanh"},
        keys=_WINDOWS | {"attention_bias", "hidden_activation", "query_pre_attn_scalar",
                         "final_logit_softcapping", "rope_local_base_freq",
                         "sliding_window_pattern"},
        foreign=frozenset({"original_max_position_embeddings"}), ignored=_ACTIVATION,
        theta=1e6, local_theta=1e4,
        # transformers reads attn_logit_softcapping here and then does nothing with it.
        only=_CAUSAL | {"attn_logit_softcapping": (None,)},
        sets=_GEMMA | {"post_norms": True, "qk_norm": True},
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        defaults={"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "gelu_new",
                  "max_position_embeddings": 1024},
        foreign=_ACTIVATION | _ROTARY | {"intermediate_size", "rms_norm_eps", "head_dim",
                                         "num_key_value_heads"},
        only={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
              "add_cross_attention": (False,)},
        sets={"norm": "layer", "learned_positions": True, "gated": False, "rope": None,
              "qkv_bias": True, "out_bias": True, "mlp_bias": True},
        aliases={"n_embd": "hidden_size", "n_layer": "num_hidden_layers",
                 "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
                 "n_inner": "intermediate_size", "activation_function": "hidden_act",
                 "layer_norm_epsilon": "rms_norm_eps"},
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128,
                  "sliding_window_pattern": 2, "num_local_experts": 128, "num_experts_per_tok": 4,
                  "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True,
                  "rms_norm_eps": 1e-5,
                  "max_position_embeddings": 131_072,
                  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                                   "beta_slow": 1.0, "truncate": False,
                                   "original_max_position_embeddings": 4096}},
        keys=_WINDOWS | {"num_local_experts", "num_experts_per_tok", "swiglu_alpha",
                         "swiglu_limit", "attention_bias"},
        only={"hidden_act": ("silu",)}, aliases=_EXPERTS, theta=150_000.0,
        sets={"sinks": True, "mlp_bias": True},
    ),
    "llama": Family("LlamaForCausalLM", keys=frozenset({"attention_bias", "mlp_bias"}),
                    # Falcon3 names its silu and gate so, beside hidden_act.
                    only={"rope_interleaved": (False, None), "activation": ("swiglu", None)}),
    "mistral": Family(
        "MistralForCausalLM",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8,
                  "max_position_embeddings": 131_072},
        keys=frozenset({"sliding_window"}),
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
                  "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072},
        keys=frozenset({"sliding_window", "num_local_experts", "num_experts_per_tok"}),
        aliases=_EXPERTS, theta=1e6,
    ),
    "phi3": Family("Phi3ForCausalLM",
                   defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
                             "original_max_position_embeddings": 4096},
                   keys=frozenset({"sliding_window"}),
                   only={"attention_bias": (False, None), "mlp_bias": (False, None),
                         "lm_head_bias": (False, None), "full_attn_mod": (1,),
                         "interpolate_factor": (1,)}),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        defaults={"num_key_value_heads": 32, "max_window_layers": 28, "sliding_window": 4096,
                  "max_position_embeddings": 32_768},
        keys=_FLAGGED, only={"use_mrope": (False, None)}, sets={"qkv_bias": True},
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        defaults={"num_key_value_heads": 32, "max_window_layers": 28, "head_dim": 128,
                  "sliding_window": 4096, "max_position_embeddings": 32_768},
        keys=_FLAGGED | {"attention_bias"}, sets={"qk_norm": True},
    ),
}  # fmt: skip


def family_of(raw: Mapping[str, Any]) -> Family:
    """The family of a config.

    Raises:
      ValueError: a model type that is not supported; the message lists those that are.
    """
    name = raw.get("model_type")
    if name not in FAMILIES:
        more = ""
        if name == "bert":
            more = "; sentence encoders are read by gradejax.generation.sentences.SentenceEncoder"
        elif isinstance(name, str) and (near := difflib.get_close_matches(name, FAMILIES, 1)):
            more = f"; did you mean {near[0]!r}?"
        raise ValueError(
            f"unsupported model_type {name!r}; supported: {', '.join(sorted(FAMILIES))}{more}"
        )
    return FAMILIES[name]


def resolved(raw: Mapping[str, Any], ignore=()) -> dict[str, Any]:
    """The config under common names with the family's defaults filled in, its keys checked.

    Args:
      raw: the parsed ``config.json``.
      ignore: further keys to pass over.

    Raises:
      ValueError: an unsupported family, a key that nobody reads, a value that is not supported, a
        null where there is no "none", two names of one key that differ.
    """
    family = family_of(raw)
    raw = _renamed(raw, family, ignore)
    name = raw["model_type"]
    unknown = []
    for key, value in raw.items():
        if key in family.only:
            if value not in family.only[key]:
                choices = ", ".join(map(repr, family.only[key]))
                raise ValueError(
                    f"{key}={value!r} of a {name} model is not supported; supported: {choices}"
                )
        elif key == "quantization_config":
            if value:
                method = value.get("quant_method", value) if isinstance(value, Mapping) else value
                raise ValueError(
                    f"quantised weights ({method}) are not supported; use a float32, bfloat16 or "
                    "float16 checkpoint of the model"
                )
        elif key in COMMON_KEYS | family.keys | INERT_KEYS | family.echoes.keys():
            pass
        elif not key.startswith(INERT_PREFIXES) and value not in OFF:
            unknown.append(f"{key}={value!r}")
    if unknown:
        raise ValueError(
            f"config.json of a {name} model has settings that this version does not know: "
            f"{', '.join(unknown)}. If they do not change what the model computes, name them in "
            "ignore="
        )
    filled = _filled(raw, family)
    for key, read in family.echoes.items():
        if (value := filled.get(key)) is not None and value != filled[read]:
            raise ValueError(
                f"{key}={value!r} contradicts {read}={filled[read]!r}, which a {name} model reads; "
                f"make them equal or leave {key} out"
            )
    return filled


def _renamed(raw: Mapping[str, Any], family: Family, ignore) -> dict[str, Any]:
    """The config under common names; two names of one key that differ are an error."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in ignore or key in family.ignored or key in family.foreign and value in OFF:
            continue
        if key in family.foreign:
            names = [name for name, common in family.aliases.items() if common == key]
            raise ValueError(
                f"{key}={value!r} is not read in a {raw['model_type']} model; expected "
                + (f"{names[0]} in its place" if names else "no such entry")
            )
        common = family.aliases.get(key, key)
        if out.setdefault(common, value) != value:
            raise ValueError(
                f"{key}={value!r} contradicts {out[common]!r}, given under another name of it; "
                "make them equal or leave one out"
            )
    return out


def _filled(raw: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The config with the family's defaults; a null is as good as no entry where it says none."""
    defaults = DEFAULTS | dict(family.defaults)
    if "rope_parameters" in raw and raw["rope_parameters"] is not None:
        defaults.pop("rope_scaling", None)
    for key in raw.keys() & defaults.keys():
        if raw[key] is None and key not in NULLABLE:
            raise ValueError(
                f"{key} of a {raw['model_type']} model is null; expected a value, or no {key} at "
                f"all for {defaults[key]!r}, the default"
            )
    given = {
        key: value for key, value in raw.items()
        if value is not None or key in NONE
    }  # fmt: skip
    if not given.get("rope_scaling"):  # {} is as good as none
        given.pop("rope_scaling", None)
    return defaults | given
