"""Reading config.json: what released configs hold, refusals, and writing it again."""

import pytest
from hf_folders import BY_LENGTH, NAMES, raw

from gradejax.models.config import decoder_config, huggingface_config, ids_of, read_json


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox'; supported: gemma, gemma2, .*phi3, qwen2, qwen3"),
        ({"model_type": ...}, "None; supported: gemma, gemma2, gemma3_text, gpt2, gpt_oss, llama"),
        ({"hidden_act": "relu2"}, "'relu2'; supported: gelu, gelu_new, gelu_pytorch_tanh, silu"),
        ({"num_key_value_heads": 4}, "num_attention_heads=6 .* num_key_value_heads=4"),
        ({"vocab_size": ..., "hidden_size": ...}, "lacks vocab_size, hidden_size"),
        ({"head_dim": 7}, "head_dim must be even .* got 7"),
        ({"head_dim": ..., "hidden_size": 38}, "hidden_size=38 is no multiple of .*heads=6"),
        ({"quantization_config": "int8"}, r"quantised weights \(int8\)"),
    ],
)
def test_refusals_name_the_choices(entries, words):
    with pytest.raises(ValueError, match=words):
        decoder_config(raw("llama", **entries))


@pytest.mark.parametrize(
    "name, entries, words",
    [
        ("llama", {"logit_scale": 0.5}, "does not know: logit_scale=0.5.*name them in ignore="),
        ("llama", {"rotary_dim": 8, "rotary_pct": 0.5}, "know: rotary_dim=8, rotary_pct=0.5"),
        ("llama", {"layer_types": ["full_attention"] * 2}, "know: layer_types="),
        ("llama", {"use_sliding_window": True}, "does not know: use_sliding_window=True"),
        ("mistral", {"attention_bias": True}, "does not know: attention_bias=True"),
        ("gemma2", {"use_bidirectional_attention": True}, "=True of a gemma2 .*supported: None, F"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "softcapping=50.0 of a gemma3_text model"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act='gelu' of a gpt_oss .*supported: 'silu'"),
        ("llama", {"activation": "geglu"}, "activation='geglu' of a llama .*supported: 'swiglu'"),
        ("gemma2", {"sliding_window_size": 9}, "size=9 contradicts sliding_window=7"),
        ("gemma2", {"sliding_window": ..., "sliding_window_size": 9}, "contradicts .*window=4096"),
        ("mistral", {"sliding_window_size": 7}, "does not know: sliding_window_size=7"),
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
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid",
               "sliding_window": 7, "sliding_window_size": 7},
    "gpt2": {"n_ctx": 1024, "summary_type": "cls_index", "summary_use_proj": True,
             "task_specific_params": {"text-generation": {"do_sample": True}}, "attn_pdrop": 0.1,
             "predict_special_tokens": True, "n_special": 0, "_num_labels": 1},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096,
                "output_router_logits": False, "router_aux_loss_coef": 0.9},
    "llama": {"pretraining_tp": 1, "torch_dtype": "bfloat16", "_name_or_path": "x",
              "activation": "swiglu", "unsloth_version": "2025.1", "model_name": "x",
              "neuron": {"task": "text-generation"}, "max_window_layers": 28, "num_beams": 1},
    "mistral": {"max_window_layers": 28, "use_sliding_window": False, "num_logits_to_keep": 1},
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


@pytest.mark.parametrize("value", [True, -1, 2.0, 10**12, "2", [1, None], [[1]], {}])
def test_what_is_no_token_id(value):
    with pytest.raises(ValueError, match="eos_token_id must be a token id or a list of them .*got"):
        decoder_config(raw("llama", eos_token_id=value))
    with pytest.raises(ValueError, match="expected a token id or a list of token ids, got"):
        ids_of(value)


def test_no_stop_id_is_written_as_one():
    """Without the key transformers takes its class's own id, 2 in llama."""
    written = huggingface_config(decoder_config(raw("llama", eos_token_id=...)))
    assert written["eos_token_id"] is None and decoder_config(written).stop_ids == ()


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "1e-5", True, -1.0])
def test_numbers_no_float_holds(value):
    with pytest.raises(ValueError, match="rms_norm_eps must be a finite number > 0, got"):
        decoder_config(raw("llama", rms_norm_eps=value))
    with pytest.raises(ValueError, match="vocab_size must be "):
        decoder_config(raw("llama", vocab_size=value))


def test_torn_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"vocab_size": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON: .*digits"):
        read_json(tmp_path / "config.json")
