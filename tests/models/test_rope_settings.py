"""Rotary settings of config.json: both spellings, contradictions, numbers that do not fit."""

import pytest
from hf_folders import raw

from gradejax.models.config import decoder_config, huggingface_config


def test_transformers_4_and_5_spell_rope_differently():
    """T17: `rope_parameters` holds theta; `rope_scaling` had `rope_theta` beside it."""
    new = decoder_config(raw("llama"))
    scaling = dict(raw("llama")["rope_parameters"])
    theta = scaling.pop("rope_theta")
    old = decoder_config(raw("llama", rope_parameters=..., rope_scaling=scaling, rope_theta=theta))
    legacy = dict(scaling, type=scaling["rope_type"])
    del legacy["rope_type"]
    older = decoder_config(raw("llama", rope_parameters=..., rope_scaling=legacy, rope_theta=theta))
    assert new == old == older
    assert new.rope.kind == "llama3" and new.rope.factor == 4.0
    assert new.rope.original_max_positions == 64
    assert decoder_config(raw("qwen2")).rope.theta == 700.0  # D10: not the default 10000


def test_unknown_rope_types_and_settings_are_errors():
    with pytest.raises(ValueError, match="'mrope'; supported in a llama model: default, dynamic"):
        decoder_config(raw("llama", rope_parameters={"rope_type": "mrope", "factor": 2.0}))
    with pytest.raises(ValueError, match="rope settings mrope_section are not known"):
        decoder_config(raw("llama", rope_parameters={"mrope_section": [2, 3]}))


def test_scaling_needs_its_factor():
    with pytest.raises(ValueError, match="needs a factor"):
        decoder_config(raw("llama", rope_parameters={"rope_type": "llama3"}))


def test_partial_rotary_is_refused():
    """phi3's heads may turn in part; elsewhere transformers reads the key and turns all."""
    with pytest.raises(ValueError, match="partial_rotary_factor=0.5 of a llama .*in: phi3"):
        decoder_config(raw("llama", partial_rotary_factor=0.5))
    assert decoder_config(raw("phi3_longrope")).rope.width(8) == 6


def test_gemma3_has_two_rotary_bases_in_both_spellings():
    """T17: the scaling is of the global layers only."""
    new = decoder_config(raw("gemma3"))
    old = decoder_config(raw(
        "gemma3", rope_parameters=..., rope_theta=5000.0, rope_local_base_freq=50.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0}))  # fmt: skip
    assert new == old
    assert [new.rope_of(i).theta for i in range(3)] == [50.0, 5000.0, 50.0]
    assert [new.rope_of(i).kind for i in range(3)] == ["default", "linear", "default"]
    with pytest.raises(ValueError, match="by kind of layer is not supported in llama models"):
        decoder_config(raw("llama", rope_parameters=raw("gemma3")["rope_parameters"]))


def test_phi3s_old_names_of_longrope():
    new, entry = decoder_config(raw("phi3_longrope")), dict(raw("phi3_longrope")["rope_parameters"])
    del entry["rope_type"]
    old = raw("phi3_longrope", rope_parameters=..., rope_scaling=entry | {"type": "su"})
    assert decoder_config(old) == new
    assert new.rope.factor == 4.0 and new.rope.original_max_positions == 16
    bare = {k: v for k, v in old.items() if k != "original_max_position_embeddings"}
    del bare["rope_scaling"]["original_max_position_embeddings"]
    assert decoder_config(bare).rope.original_max_positions == 4096  # Phi3Config's own default


def test_gpt_oss_without_rope_settings_has_its_releases_yarn():
    rope = decoder_config(raw("gpt_oss", rope_parameters=..., rope_scaling=...)).rope
    assert (rope.kind, rope.theta, rope.factor, rope.truncate) == ("yarn", 150_000.0, 32.0, False)
    assert rope.original_max_positions == 4096


def test_yarns_attn_factor_is_passed_over():
    """cos and sin times 1 + .1 ln 4 = 1.1386, as in transformers; with the factor it would be 1."""
    rope = llama(rope_scaling=YARN | {"attn_factor": 0.8782488562869419}).rope
    assert rope == llama(rope_scaling=YARN).rope and rope.attention_factor is None
    with pytest.raises(ValueError, match="rope settings attn_factor are not known"):
        llama(rope_scaling=LLAMA3 | {"attn_factor": 0.5})


LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 5, "long_factor": [2.0] * 5,
        "original_max_position_embeddings": 64}  # fmt: skip
OLD = "original_max_position_embeddings"


def llama(**entries):
    return decoder_config(raw("llama", **{"rope_parameters": ...} | entries))


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"rope_parameters": LINEAR, "rope_scaling": LINEAR | {"factor": 4.0}},
         "rope_parameters={.*8.0}.*rope_scaling={.*4.0} contradict each other"),
        # transformers takes rope_scaling with the base 10000, not with the other table's 500000.
        ({"rope_parameters": LINEAR | {"rope_theta": 5e5}, "rope_scaling": LINEAR},
         "500000.0}.*rope_scaling=.*contradict each other"),
        ({"rope_parameters": LINEAR | {"rope_theta": 77.0}, "rope_theta": 55.0},
         "rope_theta=55.0 and rope_theta=77.0 of rope_parameters contradict"),
        ({"rope_scaling": LINEAR | {"rope_theta": 77.0}, "rope_theta": 55.0},
         "rope_theta=55.0 and rope_theta=77.0 of rope_scaling contradict"),
        ({"rope_parameters": YARN, OLD: 32}, f"{OLD}=32 and {OLD}=64 of rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 1.0}, "partial_rotary_factor": 0.5},
         "partial_rotary_factor=0.5 and partial_rotary_factor=1.0"),
        ({"rope_parameters": LINEAR | {"type": "default"}}, "contradicts itself: .*'default'"),
    ],
)  # fmt: skip
def test_two_spellings_that_contradict(entries, words):
    """transformers keeps one of them without a word."""
    with pytest.raises(ValueError, match=words):
        llama(**entries)


def test_two_spellings_that_agree_pass():
    theta = {"rope_theta": 55.0}
    one = llama(rope_parameters=LINEAR | theta)
    assert one.rope.theta == 55.0 and one.rope.factor == 8.0
    both = {"rope_parameters": LINEAR | theta, "rope_scaling": LINEAR | {"type": "linear"}}
    assert llama(**both, **theta) == llama(rope_parameters=LINEAR, **theta) == one
    assert llama(rope_parameters=YARN, **{OLD: 64}) == llama(rope_parameters=YARN)
    assert llama(rope_scaling=None, rope_parameters={}) == llama(rope_scaling={}) == llama()
    # Qwen2.5's own spelling of yarn, and one with a note on how the model was made.
    noted = YARN | {"type": "yarn", "finetuned": True}
    assert llama(rope_scaling=noted) == llama(rope_parameters=YARN)


@pytest.mark.parametrize(
    "table, words",
    [
        *[(LINEAR | {"factor": v}, "rope_parameters: factor must be a finite number > 0, got")
          for v in (0, -2.0, "8", True, float("nan"), float("inf"), 10**400, [8.0])],
        (LINEAR | {"factor": 1e-300}, "factor must be from 1e-30 to 1e30"),
        (LINEAR | {"rope_theta": 1e-300}, "rope_theta must be from 1e-30 to 1e30"),
        (YARN | {OLD: 10**400}, f"{OLD} must be less than"),
        (LINEAR | {"rope_type": "dynamic", "factor": 1e9}, "dynamic factor 1000000000.0 must be"),
        (LLAMA3 | {"low_freq_factor": 0}, "low_freq_factor must be a finite number > 0, got 0"),
        (LLAMA3 | {"high_freq_factor": "4"}, "high_freq_factor must be a finite number > 0"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor=4.0 must be less than .*factor=4.0"),
        (LLAMA3 | {"low_freq_factor": 5}, "low_freq_factor=5.0 must be less than"),
        (YARN | {"beta_fast": 0}, "beta_fast must be a finite number > 0, got 0"),
        (YARN | {"beta_slow": "1"}, "beta_slow must be a finite number > 0, got '1'"),
        (YARN | {"beta_fast": 0.5}, "beta_fast=0.5 must be at least beta_slow=1.0"),
        (YARN | {"truncate": "false"}, "truncate must be true or false, got 'false'"),
        (YARN | {"truncate": None}, "truncate must be true or false, got None"),
        (YARN | {"attention_factor": -1.0}, "attention_factor must be a finite number > 0"),
        (YARN | {"mscale": "1"}, "mscale must be a finite number >= 0"),
        (YARN | {"rope_theta": 1}, "needs a rope_theta above 1, got 1.0"),
        (YARN | {"rope_theta": 0}, "rope_theta must be a finite number > 0, got 0"),
        (YARN | {OLD: 0}, f"{OLD} must be a whole number of at least 1, got 0"),
        (YARN | {OLD: 64.5}, f"{OLD} must be a whole number of at least 1, got 64.5"),
        ({"rope_type": "yarn", OLD: 64}, "rope type 'yarn' needs a factor"),
        (LONG | {OLD: 1}, f"needs an {OLD} of at least 2, got 1"),
        (LONG | {"long_factor": [1.0] * 4}, "long_factor must list 5 numbers, .*got 4"),
        (LONG | {"short_factor": [1.0] * 6}, "short_factor must list 5 numbers, .*got 6"),
        (LONG | {"short_factor": []}, "short_factor must list 5 numbers, .*got 0"),
        (LONG | {"long_factor": [0.0] * 5}, "long_factor must be a list of finite numbers > 0"),
        (LONG | {"long_factor": [1.0] * 4 + ["2"]}, "long_factor must be a list of finite numbers"),
        (LONG | {"short_factor": 1.0}, "short_factor must be a list of finite numbers > 0"),
        ({"rope_type": 3}, "rope_type must be a string, got 3"),
        ({"rope_type": ["yarn"]}, "rope_type must be a string"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be a number > 0, at most 1"),
        ({"factor": 8.0}, "type 'default' holds {'factor': 8.0}, which that type does not read"),
        (LINEAR | {"beta_fast": 32}, "type 'linear' holds {'beta_fast': 32}"),
        (LLAMA3 | {"attention_factor": 1.2}, "type 'llama3' holds {'attention_factor': 1.2}"),
    ],
)  # fmt: skip
def test_numbers_of_a_table_are_looked_at(table, words):
    with pytest.raises(ValueError, match=words):
        llama(rope_parameters={"rope_theta": 500.0} | table)


def test_what_a_table_leaves_out():
    """As transformers 5.24: the context is max_position_embeddings, yarn's null factor a ratio."""
    for table in (LLAMA3, YARN, LONG):
        short = {k: v for k, v in table.items() if k != OLD}
        assert llama(rope_parameters=short).rope.original_max_positions == 256
    assert llama(rope_parameters=YARN | {"factor": None}).rope.factor == 256 / 64
    assert llama(rope_parameters=LONG).rope.factor == 256 / 64
    plain = llama(rope_parameters=YARN).rope
    assert (plain.beta_fast, plain.beta_slow, plain.truncate) == (32.0, 1.0, True)
    idle = {"rope_type": "default", "factor": 1.0, "attention_factor": None, OLD: 64}
    assert llama(rope_parameters=idle) == llama()


def test_heads_that_cannot_turn():
    with pytest.raises(ValueError, match="must be even .*'dynamic': at least 4.*got 2"):
        llama(rope_parameters=LINEAR | {"rope_type": "dynamic"}, head_dim=2)
    with pytest.raises(ValueError, match="times partial_rotary_factor=0.1 must be even"):
        decoder_config(raw("phi3", rope_parameters={"partial_rotary_factor": 0.1}))
    odd = raw("gemma3", head_dim=7)
    with pytest.raises(ValueError, match="head_dim must be even .* got 7"):
        decoder_config(odd)
    shorter = llama(rope_parameters={"rope_type": "dynamic", "factor": 0.5})
    assert shorter.max_positions == 256  # rows of the original context still fit


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
def test_phi3_has_longrope_alone(kind):
    with pytest.raises(ValueError, match="supported in a phi3 model: default, longrope"):
        decoder_config(raw("phi3", rope_parameters={"rope_type": kind, "factor": 2.0}))


def test_phi3s_default_context_hides_no_other():
    """transformers takes Phi3Config's 4096 before the table's 16."""
    with pytest.raises(ValueError, match=f"{OLD}=4096 and {OLD}=16 of rope_parameters contradict"):
        decoder_config(raw("phi3_longrope", **{OLD: ...}))


FULL, NEAR = LINEAR | {"rope_theta": 5000.0}, {"rope_type": "default", "rope_theta": 50.0}


@pytest.mark.parametrize(
    "entries, words",
    [
        # transformers reads neither and turns by its defaults.
        ({"rope_parameters": FULL}, "expected full_attention and sliding_attention in rope_param"),
        ({"rope_parameters": {"full_attention": FULL, "factor": 2.0}}, "parameters with factor"),
        ({"rope_parameters": {"chunked_attention": FULL}}, "parameters with chunked_attention"),
        ({"rope_parameters": ..., "rope_scaling": {"full_attention": LINEAR}}, "or the full layer"),
        ({"rope_parameters": {"full_attention": "linear"}}, "full_attention must be a JSON object"),
        ({"rope_parameters": {"full_attention": FULL}, "rope_scaling": LINEAR | {"factor": 2.0}},
         "full_attention={.*rope_scaling={.*contradict each other"),
        ({"rope_parameters": {"full_attention": FULL}, "rope_theta": 7.0},
         "rope_theta=7.0 and rope_theta=5000.0 of full_attention contradict"),
        ({"rope_parameters": {"sliding_attention": NEAR}, "rope_local_base_freq": 7.0},
         "rope_local_base_freq=7.0 and rope_theta=50.0 of sliding_attention contradict"),
        ({"rope_parameters": {"full_attention": YARN | {"truncate": False}}}, "truncate=False of"),
        ({"rope_parameters": {"sliding_attention": LINEAR | {"factor": 0}}}, "factor must be a"),
        ({OLD: 64}, f"{OLD}=64 is not read in a gemma3_text model"),
    ],
)  # fmt: skip
def test_gemma3s_settings_lie_under_the_kinds_of_layer(entries, words):
    with pytest.raises(ValueError, match=words):
        decoder_config(raw("gemma3", **entries))


def test_gemma3s_kinds_that_are_left_out_have_its_defaults():
    nested = {"rope_parameters": {"full_attention": FULL, "sliding_attention": None}}
    for entries in (nested, {"rope_parameters": {"full_attention": FULL}, "rope_theta": 5000.0,
                             "rope_scaling": LINEAR}):  # fmt: skip
        got = decoder_config(raw("gemma3", **entries))
        assert (got.rope.theta, got.rope.factor, got.local_rope.theta) == (5000.0, 8.0, 1e4)
    assert decoder_config(raw("gemma3", rope_parameters={})).rope.theta == 1e6


@pytest.mark.parametrize("table", [LINEAR | {"rope_type": "dynamic"}, YARN, LLAMA3])
def test_gemma3s_scalings_are_written_back(table):
    """A dynamic one with the context before scaling, or each writing would multiply it by 8."""
    config = decoder_config(raw("gemma3", rope_parameters={"full_attention": table}))
    assert decoder_config(huggingface_config(config)) == config


def test_gpt_oss_with_an_empty_table():
    """transformers: an empty rope_scaling is none, empty rope_parameters are a plain rope."""
    none = raw("gpt_oss", rope_parameters=..., rope_scaling={})
    assert decoder_config(none).rope.kind == "yarn"
    plain = decoder_config(raw("gpt_oss", rope_parameters={})).rope
    assert (plain.kind, plain.theta) == ("default", 150_000.0)


# Rotary entries of released files, with the heads they are for: (head_dim, family, entries).
RELEASED = {
    "Llama-3.2-1B": (64, "llama", {
        "rope_theta": 5e5, "max_position_embeddings": 131_072, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, OLD: 8192,
            "rope_type": "llama3"}}),
    "SmolLM2-135M": (64, "llama", {
        "rope_theta": 100_000, "rope_scaling": None, "rope_interleaved": False}),
    "TinyLlama-1.1B": (64, "llama", {"rope_theta": 10000.0, "rope_scaling": None}),
    "Yarn-Mistral-7b-64k": (128, "mistral", {
        "rope_theta": 10000.0, "max_position_embeddings": 32_768, "sliding_window": 65_536,
        "rope_scaling": {"factor": 8.0, OLD: 8192, "type": "yarn", "finetuned": True}}),
    "Mixtral-8x7B": (128, "mixtral", {"rope_theta": 1e6, "sliding_window": None}),
    "Qwen2.5-7B, its card's yarn": (128, "qwen2", {
        "rope_theta": 1e6, "max_position_embeddings": 32_768, "use_sliding_window": False,
        "sliding_window": 131_072, "max_window_layers": 28,
        "rope_scaling": {"factor": 4.0, OLD: 32_768, "type": "yarn"}}),
    "Qwen3-0.6B": (128, "qwen3", {
        "rope_theta": 1_000_000, "rope_scaling": None, "use_sliding_window": False,
        "sliding_window": None, "max_window_layers": 28}),
    "DeepSeek-R1-0528-Qwen3-8B": (128, "qwen3", {
        "rope_theta": 1_000_000, "max_position_embeddings": 131_072, "use_sliding_window": False,
        "sliding_window": None, "max_window_layers": 36, "rope_scaling": {
            "attn_factor": 0.8782488562869419, "factor": 4.0, OLD: 32_768, "rope_type": "yarn"}}),
    "Phi-3.5-mini": (96, "phi3", {
        "rope_theta": 10000.0, "max_position_embeddings": 131_072, OLD: 4096,
        "sliding_window": 262_144, "rope_scaling": {
            "long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"}}),
    "Phi-4-mini": (128, "phi3", {
        "rope_theta": 10000.0, "max_position_embeddings": 131_072, OLD: 4096,
        "partial_rotary_factor": 0.75, "rope_scaling": {
            "long_factor": [1] * 48, "short_factor": [1.0] * 48, "type": "longrope"}}),
    "gemma-2-2b": (256, "gemma2", {"rope_theta": 10000.0, "sliding_window": 4096}),
    "gemma-3-1b": (256, "gemma3", {
        "rope_theta": 1_000_000, "rope_local_base_freq": 10000, "rope_scaling": None,
        "sliding_window": 512, "sliding_window_pattern": 6}),
    "gpt-oss-20b": (64, "gpt_oss", {
        "rope_theta": 150_000, "initial_context_length": 4096, "sliding_window": 128,
        "max_position_embeddings": 131_072, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, OLD: 4096, "rope_type": "yarn",
            "truncate": False}}),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_files_are_read(name):
    head_dim, family, entries = RELEASED[name]
    base = {"rope_parameters": ..., "partial_rotary_factor": ..., "layer_types": ...}
    if family != "phi3":
        base["head_dim"] = head_dim
    else:
        base |= {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "num_key_value_heads": 1}
    got = decoder_config(raw(family, **base | entries))
    assert got.rope.theta == entries["rope_theta"] and got.head_dim == head_dim
    scaling = entries.get("rope_scaling") or {}
    assert got.rope.kind == scaling.get("rope_type", scaling.get("type", "default"))
    assert got.rope.factor == (32.0 if family == "phi3" else scaling.get("factor", 1.0))
