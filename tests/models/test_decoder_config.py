"""Reading config.json: both spellings of rotary settings, family defaults, refusals."""

import json

import pytest
from hf_folders import BY_LENGTH, NAMES, ROOT

from gradejax.models.config import decoder_config, huggingface_config, ids_of, read_json


def raw(name, **entries):
    out = json.loads((ROOT / name / "config.json").read_text()) | entries
    return {k: v for k, v in out.items() if v is not ...}


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
    with pytest.raises(ValueError, match="'mrope'; supported in a llama model: default, dynamic, linear, llama3"):
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


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox'; supported: gemma, gemma2, .*phi3, qwen2, qwen3"),
        ({"model_type": ...}, "None; supported: gemma, gemma2, gemma3_text, gpt2, gpt_oss, llama"),
        ({"hidden_act": "relu2"}, "'relu2'; supported: gelu, gelu_new, gelu_pytorch_tanh, silu"),
        ({"num_key_value_heads": 4}, "num_attention_heads=6 .* num_key_value_heads=4"),
        ({"vocab_size": ..., "hidden_size": ...}, "lacks vocab_size, hidden_size"),
        ({"head_dim": 7}, "head_dim must be even .* got 7"),
    ],
)
def test_refusals_name_the_choices(entries, words):
    with pytest.raises(ValueError, match=words):
        decoder_config(raw("llama", **entries))


def test_family_defaults():
    assert decoder_config(raw("qwen2")).qkv_bias  # no attention_bias key, always there (D05)
    assert not decoder_config(raw("qwen2")).out_bias
    assert not decoder_config(raw("llama", tie_word_embeddings=...)).tied
    assert decoder_config(raw("phi3", rms_norm_eps=...)).norm_eps == 1e-5
    assert decoder_config(raw("qwen2", rms_norm_eps=...)).norm_eps == 1e-6
    assert decoder_config(raw("phi3")).head_dim == 6  # 36 / 6
    assert decoder_config(raw("llama", num_key_value_heads=...)).num_kv_heads == 6


def test_windows():
    """qwen2 carries a window that only its flag turns on; phi3's is always on."""
    assert decoder_config(raw("qwen2", sliding_window=5)).sliding_window is None
    on = raw("qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=0,
             layer_types=["sliding_attention"] * 2)  # fmt: skip
    assert decoder_config(on).sliding_window == 5
    assert decoder_config(raw("phi3")).sliding_window == 7
    mixed = decoder_config(on | {"layer_types": ["sliding_attention", "full_attention"]})
    assert [mixed.window(i) for i in range(2)] == [5, None]
    late = {k: v for k, v in on.items() if k != "layer_types"} | {"max_window_layers": 1}
    assert [decoder_config(late).window(i) for i in range(2)] == [None, 5]
    assert decoder_config(on | {"layer_types": ["full_attention"] * 2}).sliding_window is None
    with pytest.raises(ValueError, match=r"layer_types \['chunked_attention'\]; supported"):
        decoder_config(on | {"layer_types": ["chunked_attention"] * 2})
    with pytest.raises(ValueError, match="lists 3 layers, the model has 2"):
        decoder_config(on | {"layer_types": [*on["layer_types"], "full_attention"]})


def test_alternating_windows_by_default():
    """gemma2 and gpt_oss begin with a window in every other layer, gemma3 has five of six."""
    without = {"layer_types": ..., "num_hidden_layers": 7}
    at = lambda name: [decoder_config(raw(name, **without)).window(i) == 7 for i in range(7)]  # noqa: E731
    assert at("gemma2") == at("gpt_oss") == [True, False] * 3 + [True]
    assert at("gemma3") == [True] * 5 + [False, True]


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


def test_gemmas_gelu_is_the_tanh_form():
    assert decoder_config(raw("gemma", hidden_act="gelu")).activation == "gelu_pytorch_tanh"
    assert decoder_config(raw("gemma2", hidden_activation="silu")).activation == "silu"
    assert decoder_config(raw("llama", hidden_act="gelu")).activation == "gelu"


@pytest.mark.parametrize(
    "name, entries, words",
    [
        ("llama", {"logit_scale": 0.5}, "does not know: logit_scale=0.5.*name them in ignore="),
        ("llama", {"use_sliding_window": True}, "does not know: use_sliding_window=True"),
        ("mistral", {"attention_bias": True}, "does not know: attention_bias=True"),
        ("gemma2", {"use_bidirectional_attention": True}, "=True of a gemma2 .*supported: None, F"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "softcapping=50.0 of a gemma3_text model"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act='gelu' of a gpt_oss .*supported: 'silu'"),
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok=6 must lie in 1 to 5"),
    ],
)
def test_settings_that_nobody_reads_are_errors(name, entries, words):
    """Silently left out, each of these gives other numbers than transformers."""
    with pytest.raises(ValueError, match=words):
        decoder_config(raw(name, **entries))


def test_settings_that_are_off_or_inert_pass():
    base = decoder_config(raw("llama"))
    extra = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"a": 1},
             "logit_scale": None, "_attn_implementation": "sdpa",
             "router_jitter_noise": 0.1}  # fmt: skip
    assert decoder_config(raw("llama", **extra)) == base
    assert decoder_config(raw("llama", logit_scale=0.5), ignore=("logit_scale",)) == base


# What released models' configs hold beside the keys of our fixtures.
RELEASED = {
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gpt2": {"n_ctx": 1024, "summary_type": "cls_index", "summary_use_proj": True,
             "task_specific_params": {"text-generation": {"do_sample": True}}, "attn_pdrop": 0.1},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096,
                "output_router_logits": False, "router_aux_loss_coef": 0.9},
    "llama": {"pretraining_tp": 1, "torch_dtype": "bfloat16", "_name_or_path": "x"},
    "phi3": {"auto_map": {"AutoConfig": "x"}, "full_attn_mod": 1, "interpolate_factor": 1,
             "lm_head_bias": False, "embd_pdrop": 0.0, "attention_bias": False},
    "qwen2": {"use_mrope": False, "max_window_layers": 21, "sliding_window": 32768},
    "qwen3": {"use_sliding_window": False, "sliding_window": None, "attention_dropout": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_keys_of_released_models_pass(name):
    assert decoder_config(raw(name, **RELEASED[name])) == decoder_config(raw(name))


@pytest.mark.parametrize("name", NAMES + BY_LENGTH)
def test_written_config_reads_back(name):
    config = decoder_config(raw(name))
    assert decoder_config(huggingface_config(config)) == config


def test_ids_of():
    assert [ids_of(x) for x in (None, 3, [4, 5])] == [(), (3,), (4, 5)]


def test_torn_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")
