"""Looks at the numbers of a config.json before they become sizes and divisors."""

import math
from collections.abc import Mapping
from typing import Any

# Canonical keys and gpt2's names for them; each must be a whole number of at least 1 where given.
_COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings", "sliding_window",
    "original_max_position_embeddings", "n_embd", "n_layer", "n_head", "n_inner", "n_positions",
    "sliding_window_pattern",
)  # fmt: skip
# Whole numbers that may be 0: "none of them".
_AMOUNTS = ("num_local_experts", "num_experts_per_tok", "max_window_layers")
_POSITIVE = (
    "rms_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_local_base_freq",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "partial_rotary_factor", "swiglu_limit", "swiglu_alpha",
)  # fmt: skip
_TABLES = ("rope_scaling", "rope_parameters")
_FLAGS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window",
)  # fmt: skip


def check_entries(raw: Any) -> None:
    """Refuse a parsed config.json whose entries cannot be what they should.

    A null counts as absent, as transformers reads it.

    Raises:
      ValueError: it is no JSON object, or an entry is of another type or out of range; the message
        names the key, what it holds and what is expected.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a JSON object, got {type(raw).__name__}")
    for keys, fits, expected in (
        (_COUNTS, lambda v: _whole(v) and v >= 1, "a whole number of at least 1"),
        (_AMOUNTS, lambda v: _whole(v) and v >= 0, "a whole number of at least 0"),
        (_POSITIVE, lambda v: _number(v) and v > 0, "a finite number > 0"),
        (_TABLES, lambda v: isinstance(v, Mapping), "a JSON object"),
        (_FLAGS, lambda v: isinstance(v, bool), "true or false"),
        (("model_type",), lambda v: isinstance(v, str), "a string"),
    ):
        for key in keys:
            value = raw.get(key)
            if value is not None and not fits(value):
                raise ValueError(f"{key} must be {expected}, got {value!r}")
    ids = raw.get("eos_token_id")
    many = ids if isinstance(ids, list) else [ids]
    if ids is not None and not all(_whole(i) for i in many):
        raise ValueError(f"eos_token_id must be a token id or a list of them, got {ids!r}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
