"""Looks at the numbers of a config.json before they become sizes and divisors."""

from collections.abc import Callable, Mapping
from typing import Any

# Which entries, what they must satisfy where they are given, and that in words.
Rule = tuple[tuple[str, ...], Callable[[Any], bool], str]


def whole(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number of at least ``least``; true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def positive(value: Any) -> bool:
    """Whether a value is a finite number > 0."""
    return number(value) and value > 0


def number(value: Any) -> bool:
    """Whether a value is a number that a float holds; NaN, infinity and true are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def in_range(value: Any) -> bool:
    """Whether float32 holds a positive number and what is divided by it."""
    return 1e-30 <= value <= 1e30


def flag(value: Any) -> bool:
    """Whether a value is true or false; the string "false" and 0 are neither."""
    return isinstance(value, bool)


def positives(keys: tuple[str, ...]) -> tuple[Rule, ...]:
    """Rules of entries that are divisors, bases and the like."""
    return (
        (keys, positive, "a finite number > 0"),
        (keys, in_range, "from 1e-30 to 1e30, which float32 holds with its inverse"),
    )


def token_id(value: Any) -> bool:
    """Whether a value can be a token's id."""
    return whole(value, 0) and value < 2**31


# Canonical keys and gpt2's names for them.
_COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings", "sliding_window",
    "original_max_position_embeddings", "n_embd", "n_layer", "n_head", "n_inner", "n_positions",
    "sliding_window_pattern",
)  # fmt: skip
# Whole numbers that may be 0: "none of them".
_AMOUNTS = ("num_local_experts", "num_experts", "num_experts_per_tok", "max_window_layers")
_POSITIVE = (
    "rms_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_local_base_freq",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "partial_rotary_factor", "swiglu_limit", "swiglu_alpha",
)  # fmt: skip

_RULES: tuple[Rule, ...] = (
    (_COUNTS, whole, "a whole number of at least 1"),
    (_AMOUNTS, lambda v: whole(v, 0), "a whole number of at least 0"),
    (_COUNTS + _AMOUNTS, lambda v: v < 2**31, "less than 2**31"),  # positions and ids are int32
    *positives(_POSITIVE),
    (("rope_scaling", "rope_parameters"), lambda v: isinstance(v, Mapping), "a JSON object"),
    (("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"),
     flag, "true or false"),
    (("model_type",), lambda v: isinstance(v, str), "a string"),
    (("layer_types",),
     lambda v: isinstance(v, list | tuple) and all(isinstance(k, str) for k in v),
     "a list of strings"),
    (("eos_token_id",), lambda v: all(map(token_id, v if isinstance(v, list) else [v])),
     "a token id or a list of them (whole numbers from 0 to 2**31 - 1)"),
)  # fmt: skip


def check(entries: Mapping[str, Any], rules: tuple[Rule, ...], of: str = "") -> None:
    """Refuse entries that break a rule; a null counts as absent.

    Args:
      entries: a JSON object.
      rules: what its entries must satisfy.
      of: begins the message, where the object is part of another.

    Raises:
      ValueError: the message names the key, what is expected and what it holds.
    """
    for keys, fits, expected in rules:
        for key in keys:
            value = entries.get(key)
            if value is not None and not fits(value):
                raise ValueError(f"{of}{key} must be {expected}, got {value!r:.200}")


def check_entries(raw: Any) -> None:
    """Refuse a parsed config.json whose entries cannot be what they should.

    Raises:
      ValueError: it is no JSON object, or an entry is of another type or out of range; the message
        names the key, what it holds and what is expected.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a JSON object, got {type(raw).__name__}")
    check(raw, _RULES)
