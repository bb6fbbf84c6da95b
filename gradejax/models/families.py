"""The families of decoders, as data: what each assumes, reads and fixes in its config.json.

A family is a ``Family`` here and a table of weight names (``weight_names``), nothing more; one
module computes all of them. Keys of a config that nobody here reads are an error unless they are
known to change no arithmetic: a feature that is silently left out gives wrong text.
"""

import dataclasses
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
    "max_sequence_length",
})  # fmt: skip
INERT_PREFIXES = ("_", "summary_")
# Read by those families that have them; elsewhere only "off" is accepted.
OFF = (None, False, 0, "none", {}, [])


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family fixes.

    Attributes:
      architecture: transformers' class, for ``architectures`` of a written config.
      defaults: what transformers takes where the config lacks the key.
      keys: read beside COMMON_KEYS.
      only: further keys, with the values that are supported.
      sets: DecoderConfig fields that no key decides.
      aliases: this family's names of common keys.
    """

    architecture: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    only: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)


_WINDOWS = frozenset({"sliding_window", "layer_types"})
_FLAGGED = _WINDOWS | {"use_sliding_window", "max_window_layers"}
_CAUSAL = {"use_bidirectional_attention": (None, False)}
_GEMMA = {"norm": "rms_plus_one"}

FAMILIES: dict[str, Family] = {
    "gemma": Family(
        "GemmaForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 16,
                  "max_position_embeddings": 8192},
        keys=frozenset({"attention_bias", "hidden_activation"}), only=_CAUSAL, sets=_GEMMA,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4,
                  "query_pre_attn_scalar": 256, "sliding_window": 4096,
                  "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
                  "max_position_embeddings": 8192, "sliding_window_pattern": 2},
        keys=_WINDOWS | {"attention_bias", "hidden_activation", "query_pre_attn_scalar",
                         "final_logit_softcapping", "attn_logit_softcapping",
                         "sliding_window_pattern"},
        only=_CAUSAL, sets=_GEMMA | {"post_norms": True},
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4,
                  "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
                  "rope_local_base_freq": 1e4, "max_position_embeddings": 131_072,
                  "sliding_window_pattern": 6},
        keys=_WINDOWS | {"attention_bias", "hidden_activation", "query_pre_attn_scalar",
                         "final_logit_softcapping", "rope_local_base_freq",
                         "sliding_window_pattern"},
        # transformers reads attn_logit_softcapping here and then does nothing with it.
        only=_CAUSAL | {"attn_logit_softcapping": (None,)},
        sets=_GEMMA | {"post_norms": True, "qk_norm": True},
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        defaults={"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "gelu_new",
                  "max_position_embeddings": 1024},
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
                  "rms_norm_eps": 1e-5, "rope_theta": 150_000.0,
                  "max_position_embeddings": 131_072,
                  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                                   "beta_slow": 1.0, "truncate": False,
                                   "original_max_position_embeddings": 4096}},
        keys=_WINDOWS | {"num_local_experts", "num_experts_per_tok", "swiglu_alpha",
                         "swiglu_limit", "attention_bias"},
        only={"hidden_act": ("silu",)},
        sets={"sinks": True, "mlp_bias": True},
    ),
    "llama": Family("LlamaForCausalLM", keys=frozenset({"attention_bias", "mlp_bias"}),
                    only={"rope_interleaved": (False, None)}),
    "mistral": Family(
        "MistralForCausalLM",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8,
                  "max_position_embeddings": 131_072},
        keys=frozenset({"sliding_window"}),
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
                  "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131_072},
        keys=frozenset({"sliding_window", "num_local_experts", "num_experts_per_tok"}),
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
        defaults={"num_key_value_heads": 32, "max_window_layers": 28,
                  "max_position_embeddings": 32_768},
        keys=_FLAGGED, only={"use_mrope": (False, None)}, sets={"qkv_bias": True},
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        defaults={"num_key_value_heads": 32, "max_window_layers": 28, "head_dim": 128,
                  "max_position_embeddings": 32_768},
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
        raise ValueError(
            f"unsupported model_type {name!r}; supported: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[name]


def resolved(raw: Mapping[str, Any], ignore=()) -> dict[str, Any]:
    """The config under common names with the family's defaults filled in, its keys checked.

    Args:
      raw: the parsed ``config.json``.
      ignore: further keys to pass over.

    Raises:
      ValueError: an unsupported family, a key that nobody reads, a value that is not supported.
    """
    family = family_of(raw)
    raw = {family.aliases.get(k, k): v for k, v in raw.items() if k not in ignore}
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
                raise ValueError(
                    f"quantised weights ({value.get('quant_method', value)}) are not "
                    "supported; use a float32, bfloat16 or float16 checkpoint of the model"
                )
        elif key in COMMON_KEYS or key in family.keys or key in INERT_KEYS:
            pass
        elif not key.startswith(INERT_PREFIXES) and value not in OFF:
            unknown.append(f"{key}={value!r}")
    if unknown:
        raise ValueError(
            f"config.json of a {name} model has settings that this version does not know: "
            f"{', '.join(unknown)}. If they do not change what the model computes, name them in "
            "ignore="
        )
    # An explicit null is the default too, but for a window or a cap, where it means none.
    off = ("sliding_window", "final_logit_softcapping", "attn_logit_softcapping")
    given = {k: v for k, v in raw.items() if v is not None or k in off}
    if "rope_parameters" in given:
        given.setdefault("rope_scaling", None)
    return dict(family.defaults) | given
