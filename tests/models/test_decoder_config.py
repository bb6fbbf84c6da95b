"""Reading config.json: both spellings of rotary settings, family defaults, refusals."""

import json

import pytest
from hf_folders import ROOT

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


@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic"])
def test_unknown_rope_types_are_errors(kind):
    with pytest.raises(ValueError, match=f"'{kind}'; supported: default, linear, llama3"):
        decoder_config(raw("llama", rope_parameters={"rope_type": kind, "factor": 2.0}))


def test_scaling_needs_its_factor():
    with pytest.raises(ValueError, match="needs a factor"):
        decoder_config(raw("llama", rope_parameters={"rope_type": "llama3"}))


def test_partial_rotary_is_refused():
    with pytest.raises(ValueError, match="partial_rotary_factor"):
        decoder_config(raw("phi3", partial_rotary_factor=0.5))


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox'; supported: llama, phi3, qwen2"),
        ({"model_type": ...}, "None; supported: llama, phi3, qwen2"),
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
    mixed = on | {"layer_types": ["sliding_attention", "full_attention"]}
    with pytest.raises(ValueError, match="only some layers"):
        decoder_config(mixed)


@pytest.mark.parametrize("name", ["phi3", "qwen2", "llama_sharded"])
def test_written_config_reads_back(name):
    config = decoder_config(raw(name))
    assert decoder_config(huggingface_config(config)) == config


def test_ids_of():
    assert [ids_of(x) for x in (None, 3, [4, 5])] == [(), (3,), (4, 5)]


def test_torn_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")
