"""Writes .gguf files for tests, with names from the gguf package's own table.

The tensors are changed as llama.cpp's converter changes them: q and k of llama go into interleaved
rotary order, gemma's norms become 1 + w, gpt2's matrices are transposed.
"""

import math
import pathlib

import gguf
import numpy as np

ARCH = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "phi3": "PHI3", "gemma": "GEMMA",
        "gemma2": "GEMMA2", "gemma3_text": "GEMMA3", "gpt2": "GPT2",
        "mistral": "LLAMA"}  # fmt: skip


def interleave(array, heads):
    """The converter's order: row 2j + s of a head is Hugging Face's row s · H/2 + j."""
    half = array.shape[0] // heads // 2
    split = array.reshape(heads, 2, half, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def converted(tensors, raw):
    """Hugging Face tensors as a file holds them, by GGUF name."""
    arch = getattr(gguf.MODEL_ARCH, ARCH[raw["model_type"]])
    table = gguf.get_tensor_name_map(arch, raw.get("num_hidden_layers") or raw["n_layer"])
    out = {}
    for name, array in tensors.items():
        stem, _, leaf = name.rpartition(".")
        ours = table.get_name(stem)
        assert ours is not None, name
        if raw["model_type"] in ("llama", "mistral") and stem.endswith(("q_proj", "k_proj")):
            key = "num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"
            array = interleave(array, raw[key])
        if raw["model_type"].startswith("gemma") and stem.endswith("norm"):
            array = array + np.float32(1)
        if raw["model_type"] == "gpt2" and leaf == "weight" and array.ndim == 2 and ".h." in stem:
            array = np.ascontiguousarray(array.T)
        out[f"{ours}.{leaf}"] = array
    return out


def llama3_divisors(rope, head_dim):
    """``rope_freqs.weight`` of a llama3 scaling."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        share = (rope["original_max_position_embeddings"] / wave - low) / (high - low)
        keep = min(max(share, 0.0), 1.0)
        out.append(1 / ((1 - keep) / rope["factor"] + keep))
    return np.array(out, np.float32)


METADATA = {
    "num_hidden_layers": "block_count", "n_layer": "block_count",
    "max_position_embeddings": "context_length", "n_positions": "context_length",
    "hidden_size": "embedding_length", "n_embd": "embedding_length",
    "intermediate_size": "feed_forward_length", "n_inner": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon", "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip


def write(path, raw, tensors, *, kinds=None, extra=None):
    """Write a file.

    Args:
      path: of the file.
      raw: Hugging Face config with v4 names of the rope entries.
      tensors: GGUF name → float32 array.
      kinds: GGUF name → name of a quantisation; F32 otherwise.
      extra: further metadata; a key without "general." or "tokenizer." is the architecture's.
    """
    arch = gguf.MODEL_ARCH_NAMES[getattr(gguf.MODEL_ARCH, ARCH[raw["model_type"]])]
    writer = gguf.GGUFWriter(path, arch)
    entries = {
        f"{arch}.{theirs}": raw[ours] for ours, theirs in METADATA.items()
        if raw.get(ours) is not None
    }  # fmt: skip
    if raw.get("head_dim"):
        entries[f"{arch}.attention.value_length"] = raw["head_dim"]
    entries["tokenizer.ggml.eos_token_id"] = raw["eos_token_id"]
    for key, value in (extra or {}).items():
        entries[key if key.split(".")[0] in ("general", "tokenizer") else f"{arch}.{key}"] = value
    for key, value in entries.items():
        add(writer, key, value)
    for name, array in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        stored = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return pathlib.Path(path)


def add(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
