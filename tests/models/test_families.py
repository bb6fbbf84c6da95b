"""What a family takes for entries that its config.json leaves out, and what it calls them."""

import pytest
from hf_folders import raw

from gradejax.models.config import decoder_config
from gradejax.models.families import FAMILIES
from gradejax.models.rotary import Rope


def test_family_defaults():
    assert decoder_config(raw("qwen2")).qkv_bias  # no attention_bias key, always there (D05)
    assert not decoder_config(raw("qwen2")).out_bias
    assert not decoder_config(raw("llama", tie_word_embeddings=...)).tied
    assert decoder_config(raw("phi3", rms_norm_eps=...)).norm_eps == 1e-5
    assert decoder_config(raw("qwen2", rms_norm_eps=...)).norm_eps == 1e-6
    assert decoder_config(raw("phi3")).head_dim == 6  # 36 / 6
    assert decoder_config(raw("llama", num_key_value_heads=...)).num_kv_heads == 6


TANH = "gelu_pytorch_tanh"
SIZES = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 32,
         "intermediate_size": 48}  # fmt: skip
# What the configuration classes of transformers 5.24 hold for everything but SIZES: key heads,
# head_dim, norm_eps, activation, tied, max_positions, theta, and the fields of their own.
CLASSES = {
    "gemma": (16, 256, 1e-6, TANH, True, 8192, 1e4, {"embed_scale": 8.0}),
    "gemma2": (4, 256, 1e-6, TANH, True, 8192, 1e4,
               {"attn_scale": 1 / 16, "attn_softcap": 50.0, "final_softcap": 30.0,
                "sliding_window": 4096, "sliding": (True, False)}),
    "gemma3_text": (4, 256, 1e-6, TANH, True, 131_072, 1e6,
                    {"attn_scale": 1 / 16, "attn_softcap": None, "final_softcap": None,
                     "sliding_window": 4096, "sliding": (), "local_rope": Rope(
                         theta=1e4, original_max_positions=131_072)}),
    "gpt2": (32, 2, 1e-5, "gelu_new", True, 1024, None, {"qkv_bias": True, "mlp_bias": True}),
    "gpt_oss": (8, 64, 1e-5, "silu", False, 131_072, 150_000.0,
                {"sliding_window": 128, "sliding": (True, False), "experts": 128,
                 "experts_per_token": 4, "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
                 "qkv_bias": True, "out_bias": True}),
    "llama": (32, 2, 1e-6, "silu", False, 2048, 1e4, {"qkv_bias": False, "mlp_bias": False}),
    "mistral": (8, 2, 1e-6, "silu", False, 131_072, 1e4, {"sliding_window": 4096}),
    "mixtral": (8, 2, 1e-5, "silu", False, 131_072, 1e6,
                {"sliding_window": None, "experts": 8, "experts_per_token": 2}),
    "phi3": (32, 2, 1e-5, "silu", False, 4096, 1e4, {"sliding_window": None}),
    "qwen2": (32, 2, 1e-6, "silu", False, 32_768, 1e4,
              {"sliding_window": None, "qkv_bias": True, "out_bias": False}),
    "qwen3": (32, 128, 1e-6, "silu", False, 32_768, 1e4,
              {"sliding_window": None, "qkv_bias": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_config_leaves_out_is_as_in_transformers(name):
    sizes = SIZES
    if name == "gpt2":
        sizes = {"vocab_size": 50, "n_embd": 64, "n_layer": 2, "n_head": 32}
    got = decoder_config(sizes | {"model_type": name})
    *common, own = CLASSES[name]
    assert [got.num_kv_heads, got.head_dim, got.norm_eps, got.activation, got.tied,
            got.max_positions, got.rope and got.rope.theta] == common  # fmt: skip
    assert {k: getattr(got, k) for k in own} == own
    assert got.stop_ids == ()


def test_every_family_is_in_the_table():
    assert CLASSES.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    "name, key",
    [("gemma", "head_dim"), ("gemma3", "tie_word_embeddings"), ("gpt_oss", "swiglu_limit"),
     ("gpt_oss", "head_dim"), ("qwen3", "head_dim"), ("mixtral", "num_local_experts"),
     ("llama", "rms_norm_eps"), ("phi3", "max_position_embeddings"), ("mistral", "hidden_act"),
     ("gemma2", "hidden_activation"), ("gpt2", "layer_norm_epsilon")],
)  # fmt: skip
def test_a_null_is_no_default(name, key):
    """transformers 5.24 refuses these; 4 took a null for gpt_oss's head_dim as width / heads."""
    common = {"layer_norm_epsilon": "rms_norm_eps"}.get(key, key)
    with pytest.raises(ValueError, match=f"{common} of a .* is null; expected a value, or no "):
        decoder_config(raw(name, **{key: None}))


def test_a_null_for_key_heads_is_one_for_each_query_head():
    """Qwen2Config's 32 stands for a missing entry only."""
    for name in ("qwen2", "qwen3", "llama", "phi3"):
        assert decoder_config(raw(name, num_key_value_heads=None)).num_kv_heads == 6


@pytest.mark.parametrize("act", ["gelu", "silu", "gelu_pytorch_tanh", None, ...])
@pytest.mark.parametrize("activation", ["gelu", "silu", "gelu_pytorch_tanh", ...])
def test_each_gemma_reads_one_name_of_its_activation(act, activation):
    """gemma 1 reads hidden_act, and its old gelu is the tanh form; 2 and 3 read hidden_activation
    as written. The two forms of gelu are 3e-4 apart in the middle of a layer."""
    both = {"hidden_act": act, "hidden_activation": activation}
    if act is not None:
        right = {"silu": "silu"}.get(act, TANH)
        assert decoder_config(raw("gemma", **both)).activation == right
    right = TANH if activation is ... else activation
    for name in ("gemma2", "gemma3"):
        assert decoder_config(raw(name, **both)).activation == right
    assert decoder_config(raw("llama", hidden_act="gelu")).activation == "gelu"


@pytest.mark.parametrize(
    "name, entries, words",
    [
        ("gpt2", {"rms_norm_eps": 0.1}, "rms_norm_eps=0.1 is not read .*layer_norm_epsilon in its"),
        ("gpt2", {"hidden_act": "silu"}, "'silu' is not read in a gpt2 .*activation_function in"),
        ("gpt2", {"num_key_value_heads": 2}, "=2 is not read in a gpt2 model; expected no such"),
        ("gpt2", {"head_dim": 12}, "head_dim=12 is not read in a gpt2 model"),
        ("gpt2", {"rope_theta": 5.0}, "rope_theta=5.0 is not read in a gpt2 model"),
        ("gpt2", {"hidden_size": 48}, "hidden_size=48 contradicts 36"),
        ("gpt_oss", {"num_experts": 3}, "num_experts=3 contradicts 5"),
        ("mixtral", {"num_experts": "5"}, "num_experts must be a whole number"),
    ],
)
def test_other_names_of_an_entry(name, entries, words):
    with pytest.raises(ValueError, match=words):
        decoder_config(raw(name, **entries))


def test_other_names_that_agree_pass():
    assert decoder_config(raw("gpt2", hidden_size=36, n_ctx=64)) == decoder_config(raw("gpt2"))
    for name in ("gpt_oss", "mixtral"):  # transformers' attribute map
        alone = raw(name, num_local_experts=..., num_experts=5)
        assert decoder_config(alone) == decoder_config(raw(name))
