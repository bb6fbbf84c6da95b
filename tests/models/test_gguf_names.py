"""What metadata and names mean, against the gguf package's own table and by hand."""

import math
import types

import gguf
import gguf_files
import numpy as np
import pytest

from gradejax.models.config import decoder_config
from gradejax.models.gguf_names import (
    ARCHITECTURES,
    gguf_config,
    huggingface_tensors,
    interleaved_rows,
)
from gradejax.models.lazy import LazyTensor
from gradejax.models.rotary import attention_scaling


def lazy(array):
    array = np.asarray(array, np.float32)
    return LazyTensor(array.shape, lambda start, stop: array[start:stop])


def opened(arch, tensors=None, **entries):
    """A file in memory; entries without a dot in front are the architecture's."""
    fields = {
        "block_count": 2, "context_length": 128, "embedding_length": 24,
        "feed_forward_length": 40, "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    fields = {f"{arch}.{k}": v for k, v in (fields | entries).items()}
    fields["general.architecture"] = arch
    found = {"token_embd.weight": np.zeros((50, 24)), **(tensors or {})}
    return types.SimpleNamespace(
        path="x.gguf", fields=fields, tensors={k: lazy(v) for k, v in found.items()},
        get=lambda key, default=None: fields.get(key, default),
    )  # fmt: skip


def test_interleaved_order_by_hand():
    """Head of 6: the file holds (0, 3, 1, 4, 2, 5), so rows 0, 1, 2 stand at 0, 2, 4.

    (A head of 4 would not do: there the order is its own inverse.)
    """
    assert interleaved_rows(1, 6).tolist() == [0, 2, 4, 1, 3, 5]
    stored = gguf_files.interleave(np.arange(12)[:, None], 2)[:, 0]
    assert stored.tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert stored[interleaved_rows(2, 6)].tolist() == list(range(12))
    # The bug, applying the converter's order once more, gives another order.
    assert gguf_files.interleave(stored[:, None], 2)[:6, 0].tolist() == [0, 4, 3, 2, 1, 5]


HF_NAMES = {
    "llama": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj input_layernorm "
             "post_attention_layernorm",
    "phi3": "qkv_proj o_proj gate_up_proj down_proj input_layernorm post_attention_layernorm",
    "gemma2": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj input_layernorm "
              "post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm",
}  # fmt: skip
HF_NAMES["qwen2"] = HF_NAMES["gemma"] = HF_NAMES["llama"]
HF_NAMES["qwen3"] = HF_NAMES["llama"] + " q_norm k_norm"
HF_NAMES["gemma3"] = HF_NAMES["gemma2"] + " q_norm k_norm"


def full_name(word):
    if word.endswith("layernorm"):
        return f"model.layers.1.{word}"
    inside = "mlp" if word.split("_")[0] in ("gate", "up", "down") else "self_attn"
    return f"model.layers.1.{inside}.{word}"


@pytest.mark.parametrize("arch", HF_NAMES)
def test_names_are_the_packages(arch):
    table = gguf.get_tensor_name_map(
        next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 2
    )
    names = [full_name(w) for w in HF_NAMES[arch].split()] + ["model.embed_tokens", "model.norm"]
    file = opened(arch, {f"{table.get_name(n)}.weight": np.zeros((4,)) for n in names},
                  **{"attention.sliding_window": 8})  # fmt: skip
    found = huggingface_tensors(file, {"num_attention_heads": 4, "num_key_value_heads": 2,
                                       "head_dim": 6})  # fmt: skip
    assert found.keys() == {f"{n}.weight" for n in names}


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_names_of_gpt2_are_the_packages(leaf):
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 2)
    names = ["transformer.wte", "transformer.wpe", "transformer.ln_f"] + [
        f"transformer.h.1.{n}"
        for n in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    ]
    matrix = np.arange(6).reshape(2, 3)
    file = opened("gpt2", {f"{table.get_name(n)}.{leaf}": matrix for n in names})
    found = huggingface_tensors(file, {})
    assert {n for n in found if n.endswith(leaf)} >= {f"{n}.{leaf}" for n in names}
    # D02: a Conv1D weight is (in, out) for Hugging Face and (out, in) in the file; a stretch of
    # it, read from the file's rows, are columns.
    if leaf == "weight":
        conv = found["transformer.h.1.mlp.c_fc.weight"]
        assert conv.shape == (3, 2) and conv().tolist() == [[0, 3], [1, 4], [2, 5]]
        assert conv.axis == 1 and conv.read(1, 2).tolist() == [[3], [4], [5]]
        assert found["transformer.wpe.weight"].shape == (2, 3)


def test_gemmas_norms_lose_their_one():
    """D06: files hold 1 + w. Left as they stand, 1 + (1 + .25) = 2.25 would scale for 1.25."""
    names = ("output_norm", "blk.0.attn_norm", "blk.0.attn_q_norm", "blk.0.post_ffw_norm")
    for arch in ("gemma3", "llama"):
        kept = names[: 2 if arch == "llama" else 4]
        file = opened(arch, {f"{n}.weight": [1.25, 0.5] for n in kept})
        found = huggingface_tensors(file, {"num_attention_heads": 4, "num_key_value_heads": 2,
                                           "head_dim": 6})  # fmt: skip
        want = [0.25, -0.5] if arch == "gemma3" else [1.25, 0.5]
        norms = [t for n, t in found.items() if "norm" in n]
        assert norms and all(t().tolist() == want for t in norms)
    assert found["model.norm.weight"].read(1, 2).tolist() == [0.5]


def test_config_of_llama():
    raw = gguf_config(opened("llama", {"blk.0.attn_q.bias": np.zeros(24)},
                             **{"rope.freq_base": 5e5, "attention.key_length": 8}))  # fmt: skip
    assert raw["model_type"] == "llama" and raw["tie_word_embeddings"]
    assert (raw["vocab_size"], raw["hidden_size"], raw["head_dim"]) == (50, 24, 8)
    assert raw["attention_bias"] and not raw["mlp_bias"]
    assert raw["rope_theta"] == 5e5 and "rope_scaling" not in raw
    plain = gguf_config(opened("llama", {"output.weight": np.zeros((50, 24))}))
    assert plain["rope_theta"] == 10000.0 and plain["head_dim"] == 6  # llama.cpp's defaults
    assert not plain["tie_word_embeddings"]


def test_stop_ids_are_a_union():
    """B03: end of turn ends a reply as end of text does."""
    file = opened("qwen2")
    ids = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 3}
    plain, file.get = file.get, lambda key, default=None: ids.get(key, plain(key, default))
    assert gguf_config(file)["eos_token_id"] == [3, 7]


def test_llama3_scaling_is_recognised():
    """Llama 3.2's own: factor 32 on 8192 positions. D10: it must not be lost."""
    rope = {"rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}  # fmt: skip
    divisors = gguf_files.llama3_divisors(rope, 64)
    assert divisors[0] == 1 and divisors[-1] == 32 and 1 < divisors[15] < 32
    entries = {"rope.freq_base": 5e5, "attention.key_length": 64}
    raw = gguf_config(opened("llama", {"rope_freqs.weight": divisors}, **entries))
    assert raw["rope_scaling"] == {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    other = gguf_files.llama3_divisors(rope | {"original_max_position_embeddings": 4096}, 64)
    raw = gguf_config(opened("llama", {"rope_freqs.weight": other}, **entries))
    assert raw["rope_scaling"]["rope_type"] == "longrope"
    assert raw["rope_scaling"]["short_factor"] == raw["rope_scaling"]["long_factor"]
    np.testing.assert_allclose(raw["rope_scaling"]["long_factor"], other, rtol=1e-7)
    assert raw["rope_scaling"]["attention_factor"] == 1.0
    with pytest.raises(ValueError, match=r"rope_freqs.weight has shape \(32,\), 6 rotary"):
        gguf_config(opened("llama", {"rope_freqs.weight": divisors}))


def test_other_scalings():
    def scaling(arch="qwen2", tensors=None, **entries):
        found = {k.replace("__", "."): v for k, v in entries.items()}
        return gguf_config(opened(arch, tensors, **found)).get("rope_scaling")

    assert scaling(rope__scaling__type="none") is None
    assert scaling(rope__scaling__type="linear", rope__scaling__factor=4.0) == {
        "rope_type": "linear", "factor": 4.0}  # fmt: skip
    assert scaling(rope__scaling__type="yarn", rope__scaling__factor=4.0,
                   rope__scaling__original_context_length=32768) == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}  # fmt: skip
    long = scaling("phi3", {"rope_factors_long.weight": [2.0, 4.0, 8.0],
                            "rope_factors_short.weight": [1.0, 1.0, 1.5]},
                   rope__scaling__original_context_length=4096)  # fmt: skip
    assert long == {"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.5],
                    "long_factor": [2.0, 4.0, 8.0],
                    "original_max_position_embeddings": 4096}  # fmt: skip
    with pytest.raises(ValueError, match="unsupported rope scaling 'ntk'; supported: none, lin"):
        scaling(rope__scaling__type="ntk")


def test_strength_and_ramp_of_yarn():
    """cos and sin are multiplied by attn_factor · (1 + .1 ln 4) = 1.5 · 1.1386, not by 1.1386."""
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_ext_factor": 1.0}  # fmt: skip
    raw = gguf_config(opened("qwen2", **yarn, **{"rope.scaling.attn_factor": 1.5}))
    rope = decoder_config(raw).rope
    assert (rope.beta_fast, rope.beta_slow) == (16.0, 2.0)
    assert attention_scaling(rope) == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))
    assert attention_scaling(decoder_config(gguf_config(opened("qwen2", **yarn))).rope) == (
        pytest.approx(1.1386, abs=1e-4)
    )
    tables = {f"rope_factors_{w}.weight": [1.0, 2.0, 3.0] for w in ("long", "short")}
    for tensors in (tables, {"rope_freqs.weight": [1.0, 2.0, 3.0]}):
        raw = gguf_config(opened("phi3", tensors, **{"rope.scaling.attn_factor": 1.25}))
        assert raw["rope_scaling"]["attention_factor"] == 1.25  # 1 by longrope's own formula


def test_a_window_of_gemma2_has_its_pattern():
    entries = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True]}
    assert decoder_config(gguf_config(opened("gemma2", **entries))).sliding == (False, True)
    del entries["attention.sliding_window_pattern"]
    assert decoder_config(gguf_config(opened("gemma2", **entries))).sliding == (True, False)


REAL = {
    "attention.scale": 6**-0.5, "attention.sliding_window": 128, "attention.causal": True,
    "rope.scaling.finetuned": True, "vocab_size": 51, "pooling_type": 3, "expert_count": 0,
    "tensor_data_layout": "Meta AI original pth", "logit_scale": 1.0, "attention.value_length": 6,
    "rope.dimension_count": 6, "embedding_length_out": 24, "rope.freq_base_swa": 1e4,
    "nextn_predict_layers": 0, "swin_norm": False, "rope.dimension_sections": [0, 0, 0, 0],
}  # fmt: skip


def test_entries_that_change_nothing_may_stand():
    """And what other tools write beside the architecture's own."""
    file = opened("qwen2", **REAL)
    others = {"general.type": "model", "general.sampling.temp": 0.6, "split.count": 0,
              "quantize.imatrix.chunks_count": 128, "llama.logit_scale": 9.0}  # fmt: skip
    file.fields.update(others)
    plain = gguf_config(opened("qwen2"))
    assert gguf_config(file) == plain
    file.fields["qwen2.new_thing"] = 2
    with pytest.raises(ValueError, match="does not know: qwen2.new_thing=2. If .* in ignore="):
        gguf_config(file)
    assert gguf_config(file, ["qwen2.new_thing"]) == plain
    for ignore, message in (("qwen2.new_thing", "must list names"), (["x"], "x.gguf lacks: x"),
                            (["qwen2.logit_scale"], "qwen2.logit_scale is")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            gguf_config(file, ignore)


def test_windows_of_gemma3():
    entries = {"attention.sliding_window": 8}
    raw = gguf_config(opened("gemma3", **entries))
    assert raw["sliding_window_pattern"] == 6 and "layer_types" not in raw
    raw = gguf_config(opened("gemma3", **entries, **{"attention.sliding_window_pattern": 3}))
    assert raw["sliding_window_pattern"] == 3
    listed = {"attention.sliding_window_pattern": [True, False]}
    raw = gguf_config(opened("gemma3", **entries, **listed))
    assert raw["layer_types"] == ["sliding_attention", "full_attention"]


def test_a_part_of_each_head_turns():
    """Phi-4-mini: 96 of 128."""
    raw = gguf_config(opened("phi3", **{"rope.dimension_count": 3}))
    assert raw["partial_rotary_factor"] == 0.5
    # 94 · (6 / 94) is a little under 6, whose whole part is 5.
    odd = {"attention.key_length": 94, "rope.dimension_count": 6}
    assert decoder_config(gguf_config(opened("phi3", **odd))).rope.width(94) == 6
    assert "partial_rotary_factor" not in gguf_config(opened("phi3"))


def test_config_of_gemma():
    entries = {"attention.sliding_window": 8, "attention.key_length": 16,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # fmt: skip
    raw = gguf_config(opened("gemma2", **entries))
    assert raw["query_pre_attn_scalar"] == 16 and raw["hidden_activation"] == "gelu_pytorch_tanh"
    assert (raw["attn_logit_softcapping"], raw["final_logit_softcapping"]) == (50.0, 30.0)
    # The 27B sizes divide scores by sqrt(width / heads) = sqrt(6), not by sqrt(head_dim) = 4.
    big = gguf_config(opened("gemma2", **entries, block_count=46))
    assert big["query_pre_attn_scalar"] == 6
    third = {k: v for k, v in entries.items() if k != "attn_logit_softcapping"}
    third = gguf_config(opened("gemma3", **third, **{"rope.freq_base": 1e6}))
    assert third["model_type"] == "gemma3_text" and third["rope_local_base_freq"] == 10000.0
    assert third["attn_logit_softcapping"] is None and third["rope_theta"] == 1e6


@pytest.mark.parametrize(
    "arch, entries, message",
    [
        ("mamba", {}, f"'mamba'; supported: {', '.join(ARCHITECTURES)}"),
        ("llama", {"expert_count": 8}, "mixture of 8 experts"),
        ("llama", {"attention.head_count_kv": [2, 4]}, "head_count_kv differs from layer to layer"),
        ("llama", {"context_length": None}, r"lacks the metadata entry llama\.context_length"),
        ("llama", {"rope.dimension_count": 4}, "rotates 4 of 6 dimensions"),
        ("qwen3", {"attention.value_length": 8}, "another width than keys"),
        ("qwen2", {"attention.sliding_window": 64}, "sliding window in a qwen2 file is not"),
        ("gpt2", {"attention.key_length": 8}, "attention.key_length = 8 .* model's is 6"),
        ("gemma", {"rope.dimension_count_swa": 4}, "dimension_count_swa = 4 .* model's is 6"),
        ("llama", {"rope.freq_base_swa": 5e3}, "freq_base_swa = 5000.0 .* model's is 10000"),
        ("llama", {"embedding_length": 32}, "embedding_length = 32 .* model's is 24"),
        ("llama", {"attention.scale": 0.5}, r"attention.scale = 0.5 .* model's is 0\.408"),
        ("gemma2", {"attention.sliding_window": 8, "attention.scale": 0.25, "block_count": 46},
         r"attention.scale = 0.25 .* model's is 0\.408"),
        ("llama", {"rope.scaling.attn_factor": 1.5}, "attn_factor = 1.5 .* model's is 1"),
        ("llama", {"rope.scaling.yarn_attn_factor": 1.5}, "yarn_attn_factor = 1.5 .*; only 1"),
        ("llama", {"rope.scaling.yarn_log_multiplier": 0.1}, "log_multiplier = 0.1 .*; only 0"),
        ("llama", {"rope.scaling.yarn_ext_factor": 1.0}, "yarn_ext_factor = 1 .* None is not"),
        ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "'none' and a factor"),
        ("llama", {"rope.scaling.type": "longrope"}, "'longrope' and lacks its tables"),
        ("llama", {"rope.scaling.type": "yarn"}, "'yarn' and no rope.scaling.factor"),
        ("llama", {"rope.scaling.factor": -2.0}, "factor must be a finite number > 0, got -2.0"),
        ("llama", {"logit_scale": 0.5}, "logit_scale = 0.5 .*; only 0 or 1"),
        ("llama", {"embedding_scale": 12.0}, "embedding_scale = 12.0 .*; only 0 or 1"),
        ("llama", {"residual_scale": 0.22}, "residual_scale = 0.22 .*; only 0 or 1"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 .*; only 0"),
        ("qwen3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0 .*; only 0"),
        ("llama", {"attention.causal": False}, "attention.causal = False .*; only True"),
        ("llama", {"attention.clamp_kqv": 8.0}, "clamp_kqv = 8.0 .*; only 0"),
        ("llama", {"use_parallel_residual": True}, "parallel_residual = True .*; only False"),
        ("llama", {"tensor_data_layout": "other"}, "layout = 'other' .*; only 'Meta AI"),
        ("llama", {"expert_used_count": 2}, "expert_used_count = 2 .*; only 0"),
        ("qwen3", {"rope.dimension_sections": [24, 20, 20]}, "does not know: .*_sections"),
        ("llama", {"attention.head_count": 0}, "head_count must be a whole number of at least 1"),
        ("llama", {"block_count": "two"}, "block_count must be a whole number .* got 'two'"),
        ("llama", {"attention.layer_norm_rms_epsilon": math.nan}, "epsilon must be a finite numb"),
        ("llama", {"rope.freq_base": "1e4"}, "rope.freq_base must be a finite number > 0"),
    ],
)
def test_unsupported_files(arch, entries, message):
    with pytest.raises(ValueError, match=message):
        gguf_config(opened(arch, **entries))
