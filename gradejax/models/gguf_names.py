"""What GGUF metadata and tensor names mean in Hugging Face terms: data, no reading.

llama.cpp's converter changes three things besides names: the rows of llama's q and k are put in the
interleaved rotary order of the original release (fault D03), gemma's norms are stored as 1 + w
(D06), and gpt2's matrices are transposed. All three are undone here.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradejax.models.gguf_keys import Metadata, check_keys
from gradejax.models.gguf_rope import ROPE_TENSORS, rope_scaling
from gradejax.models.lazy import LazyTensor

# GGUF architecture → Hugging Face model_type. Mistral files are written as llama.
ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "gpt2": "gpt2",
}  # fmt: skip

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_BLOCK_OF = {
    "phi3": _BLOCK | _FUSED, "gemma2": _BLOCK | _FOUR_NORMS, "gemma3": _BLOCK | _FOUR_NORMS,
    "gpt2": {
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    },
}  # fmt: skip
_TOP_OF = {
    "gpt2": {"token_embd": "transformer.wte", "position_embd": "transformer.wpe",
             "output_norm": "transformer.ln_f", "output": "lm_head"},
}  # fmt: skip
_TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")

# Layers of the one size whose scores are divided by sqrt(width / heads), not sqrt(head_dim): 27B.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def architecture(file) -> str:
    """The file's architecture.

    Raises:
      ValueError: none, or one that is not supported.
    """
    found = file.get("general.architecture")
    if found not in ARCHITECTURES:
        raise ValueError(
            f"{file.path} is of architecture {found!r}; supported: {', '.join(ARCHITECTURES)}"
        )
    return found


def _stop_ids(file) -> list[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [file.get(f"tokenizer.ggml.{key}") for key in keys]
    return sorted({int(i) for i in found if i is not None})


def gguf_config(file, ignore: Sequence[str] = ()) -> dict[str, Any]:
    """What ``config.json`` would say of a file.

    Args:
      file: a ``gguf.GgufFile``.
      ignore: metadata entries that are known to change nothing, see ``gguf_keys``.

    Raises:
      ValueError: see ``gguf.read_gguf``.
    """
    arch = architecture(file)
    meta = Metadata(file, arch)
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} does not fit a language model: no tensor token_embd.weight")
    if meta.get("expert_count"):
        raise ValueError(
            f"{file.path} holds a mixture of {meta['expert_count']} experts, which is read from "
            "safetensors only"
        )
    check_keys(file.path, arch, {k: file.get(k) for k in file.fields}, ignore)
    vocab, width = file.tensors["token_embd.weight"].shape
    for name in ("embedding_length", "embedding_length_out"):
        meta.same(name, width)
    heads = meta.number("attention.head_count")
    raw: dict[str, Any] = {
        "model_type": ARCHITECTURES[arch],
        "vocab_size": vocab,
        "eos_token_id": _stop_ids(file) or None,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
        # llama.cpp writes the head only when it is not the embedding.
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if arch not in ("llama", "phi3", "gemma2", "gemma3") and (
        0 < int(meta.real("attention.sliding_window", 0.0)) < meta.number("context_length")
    ):  # fmt: skip
        raise ValueError(f"{file.path}: a sliding window in a {arch} file is not supported")
    if arch == "gpt2":
        for name in ("attention.key_length", "attention.value_length"):
            meta.same(name, width // heads)
        _check_scale(meta, (width // heads) ** -0.5)
        return raw | {
            "n_embd": width, "n_layer": meta.number("block_count"), "n_head": heads,
            "n_positions": meta.number("context_length"), "n_ctx": meta.number("context_length"),
            "n_inner": meta.number("feed_forward_length"), "activation_function": "gelu_new",
            "layer_norm_epsilon": meta.real("attention.layer_norm_epsilon"),
        }  # fmt: skip
    head_dim = meta.number("attention.key_length") if meta.get("attention.key_length") else (
        width // heads)  # fmt: skip
    if meta.get("attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{file.path}: values of another width than keys are not supported")
    rotary = head_dim
    if meta.get("rope.dimension_count") is not None:
        rotary = meta.number("rope.dimension_count")
    for name, expected in (("attention.key_length_swa", head_dim),
                           ("attention.value_length_swa", head_dim),
                           ("rope.dimension_count_swa", rotary)):  # fmt: skip
        meta.same(name, expected)
    if rotary != head_dim and arch == "llama":  # whose interleaved order is one of whole heads
        raise ValueError(
            f"{file.path} rotates {rotary} of {head_dim} dimensions of a llama head; only whole "
            "heads are supported"
        )
    theta = meta.real("rope.freq_base", 10000.0, above=0)  # llama.cpp's own default
    if arch != "gemma3":
        meta.same("rope.freq_base_swa", theta)
    kv_heads = meta.number("attention.head_count_kv") if meta.get(
        "attention.head_count_kv") is not None else heads  # fmt: skip
    raw |= {
        "hidden_size": width,
        "num_hidden_layers": meta.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": meta.number("feed_forward_length"),
        "max_position_embeddings": meta.number("context_length"),
        "rms_norm_eps": meta.real("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "rope_theta": theta,
    }
    if rotary != head_dim:
        share = rotary / head_dim
        # int(head_dim · share), which a config means, must give the whole number back.
        raw["partial_rotary_factor"] = share if int(head_dim * share) == rotary else (
            math.nextafter(share, 2.0))  # fmt: skip
    if scaling := rope_scaling(file, meta, rotary, theta):
        raw["rope_scaling"] = scaling
    raw |= _family(file, meta, arch, raw)
    _check_scale(meta, float(raw.get("query_pre_attn_scalar", head_dim)) ** -0.5)
    return raw


def _check_scale(meta: Metadata, scale: float) -> None:
    """A scale of attention scores must be the one that is used; 0 says nothing, as in llama.cpp."""
    if meta.get("attention.scale") != 0:
        meta.same("attention.scale", scale)


def _family(file, meta: Metadata, arch: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    window = meta.number("attention.sliding_window", 0) if meta.get(
        "attention.sliding_window") is not None else 0  # fmt: skip
    if arch == "llama":
        # The converter leaves mistral's window out; a file that has one is no plain llama.
        own = {"model_type": "mistral", "sliding_window": window} if window else {}
        return {**own, "attention_bias": "blk.0.attn_q.bias" in file.tensors,
                "mlp_bias": "blk.0.ffn_down.bias" in file.tensors}  # fmt: skip
    if arch == "phi3":
        out = {"sliding_window": window or None}
        if meta.get("rope.scaling.original_context_length") is not None:
            out["original_max_position_embeddings"] = meta.number(
                "rope.scaling.original_context_length")  # fmt: skip
        return out
    if not arch.startswith("gemma"):
        return {}
    out = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
    if arch == "gemma":
        return out
    scale = raw["head_dim"]
    if raw["num_hidden_layers"] == _LAYERS_OF_27B[arch]:
        scale = raw["hidden_size"] // raw["num_attention_heads"]
    out |= {"query_pre_attn_scalar": scale,
            "sliding_window": meta.number("attention.sliding_window")}  # fmt: skip
    if arch == "gemma2":
        out |= {
            "attn_logit_softcapping": meta.real("attn_logit_softcapping", 50.0, above=0),
            "final_logit_softcapping": meta.real("final_logit_softcapping", 30.0, above=0),
            "sliding_window_pattern": 2,
        }
    else:
        out |= {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": meta.real("final_logit_softcapping", 0.0) or None,
            "rope_local_base_freq": meta.real("rope.freq_base_swa", 10000.0, above=0),
            "sliding_window_pattern": 6,
        }
    pattern = meta.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        names = {True: "sliding_attention", False: "full_attention"}
        out["layer_types"] = [names[bool(local)] for local in pattern]
    elif pattern is not None:
        out["sliding_window_pattern"] = meta.number("attention.sliding_window_pattern")
    return out


def interleaved_rows(heads: int, head_dim: int) -> np.ndarray:
    """Where each row of Hugging Face's q or k stands in llama's GGUF, [heads · head_dim].

    Hugging Face rotates dimension j with j + head_dim/2, the original release 2j with 2j + 1.
    """
    place = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return place.swapaxes(1, 2).reshape(-1)


def _name(arch: str, name: str) -> str:
    top, block = _TOP_OF.get(arch, _TOP), _BLOCK_OF.get(arch, _BLOCK)
    stem, _, leaf = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{leaf}"
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if found is None or found[2] not in block:
        return name
    prefix = "transformer.h" if arch == "gpt2" else "model.layers"
    return f"{prefix}.{found[1]}.{block[found[2]]}.{leaf}"


def huggingface_tensors(file, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """The file's tensors under Hugging Face names, as Hugging Face stores them.

    Args:
      file: a ``gguf.GgufFile``.
      config: of ``gguf_config``.
    """
    arch = architecture(file)
    out: dict[str, LazyTensor] = {}
    for theirs, tensor in file.tensors.items():
        if theirs in ROPE_TENSORS:
            continue  # part of the config
        name = _name(arch, theirs)
        if arch == "llama" and re.search(r"\.self_attn\.[qk]_proj\.", name):
            key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            rows = interleaved_rows(config[key], config["head_dim"])
            if tensor.shape[0] == rows.size:  # else the shape check of the loader reports it
                tensor = tensor.reordered(rows)
        elif arch.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor.minus(1)
        elif arch == "gpt2" and _TRANSPOSED.search(name):
            tensor = tensor.transposed()
        out[name] = tensor
    return out
