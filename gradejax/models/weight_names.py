"""How a family's Hugging Face tensors are called and where they belong: data, no reading.

A tensor of a checkpoint is cut along its output axis into parts, each of which fills a place of one
of our arrays: q, k and v, apart or fused in the file (phi3, gpt2), fill places of one grouped
kernel. Both directions follow from the same entry.
"""

import dataclasses
from typing import Any

from gradejax.models.config import DecoderConfig

ALL = slice(None)


@dataclasses.dataclass(frozen=True)
class Part:
    """A stretch of a tensor and where it goes.

    Attributes:
      path: of our array.
      size: entries of the stretch along the tensor's output axis.
      at: index into our array of the place it fills.
    """

    path: str
    size: int
    at: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint.

    Attributes:
      name: Hugging Face name.
      shape: its shape there.
      parts: in order along the output axis; one unless fused.
      kind: "linear", an (out, in) matrix to transpose (fault D02); "conv", an (in, out) matrix;
        "plain", taken as it stands and cut along its first axis.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    kind: str = "plain"


# Tensors that a family's files are known to carry though no parameter belongs to them (D04).
IGNORED_SUFFIXES = {
    "llama": (".self_attn.rotary_emb.inv_freq",),
    "phi3": (".self_attn.rotary_emb.inv_freq",),
    "qwen2": (".self_attn.rotary_emb.inv_freq",),
}


def _matrix(name: str, inputs: int, parts: list[Part], bias: bool, kind="linear") -> list[Entry]:
    """The weight and bias of one torch module whose kernel's parts are ``parts``."""
    total = sum(p.size for p in parts)
    kernels = tuple(dataclasses.replace(p, path=f"{p.path}/kernel") for p in parts)
    shape = (total, inputs) if kind == "linear" else (inputs, total)
    out = [Entry(f"{name}.weight", shape, kernels, kind)]
    if bias:
        # Our biases lack the kernels' input axis.
        biases = tuple(Part(f"{p.path}/bias", p.size, p.at[1:]) for p in parts)
        out.append(Entry(f"{name}.bias", (total,), biases))
    return out


def qkv_parts(config: DecoderConfig, path: str) -> dict[str, Part]:
    """Places of q, k and v in the fused kernel [E, K, R + 2, H]."""
    share = config.num_heads // config.num_kv_heads
    key = config.num_kv_heads * config.head_dim
    return {
        "q": Part(path, share * key, (ALL, ALL, slice(0, share))),
        "k": Part(path, key, (ALL, ALL, share)),
        "v": Part(path, key, (ALL, ALL, share + 1)),
    }


def gated_parts(config: DecoderConfig, path: str) -> dict[str, Part]:
    """Places of gate and up in the fused kernel [E, 2, F]."""
    return {w: Part(path, config.mlp_width, (ALL, i)) for i, w in enumerate(("gate", "up"))}


def _layer(c: DecoderConfig, i: int) -> list[Entry]:
    hf, ours = f"model.layers.{i}", f"layers_{i}"
    vector = lambda name, path: Entry(  # noqa: E731
        f"{hf}.{name}.weight", (c.width,), (Part(f"{ours}/{path}/scale", c.width),)
    )
    heads = qkv_parts(c, f"{ours}/attn/qkv")
    gated = gated_parts(c, f"{ours}/mlp/gate_up")
    table = [vector("input_layernorm", "attn_norm"), vector("post_attention_layernorm", "mlp_norm")]
    if c.family == "phi3":
        table += _matrix(f"{hf}.self_attn.qkv_proj", c.width, list(heads.values()), c.qkv_bias)
        table += _matrix(f"{hf}.mlp.gate_up_proj", c.width, list(gated.values()), c.mlp_bias)
    else:
        for letter, part in heads.items():
            table += _matrix(f"{hf}.self_attn.{letter}_proj", c.width, [part], c.qkv_bias)
        for word, part in gated.items():
            table += _matrix(f"{hf}.mlp.{word}_proj", c.width, [part], c.mlp_bias)
    out, down = Part(f"{ours}/attn/o", c.width), Part(f"{ours}/mlp/down", c.width)
    table += _matrix(f"{hf}.self_attn.o_proj", c.num_heads * c.head_dim, [out], c.out_bias)
    table += _matrix(f"{hf}.mlp.down_proj", c.mlp_width, [down], c.mlp_bias)
    return table


def weight_table(config: DecoderConfig) -> list[Entry]:
    """Every tensor that a checkpoint of this config must hold (the head apart when tied)."""
    c = config
    table = [
        Entry("model.embed_tokens.weight", (c.vocab_size, c.width),
              (Part("embedding/embedding", c.vocab_size),)),
        Entry("model.norm.weight", (c.width,), (Part("norm/scale", c.width),)),
    ]  # fmt: skip
    for i in range(c.num_layers):
        table += _layer(c, i)
    if not c.tied:
        table.append(head_entry(c))
    return table


def head_entry(config: DecoderConfig) -> Entry:
    """The output head; in a tied checkpoint it may stand beside the embedding, if equal to it."""
    return Entry("lm_head.weight", (config.vocab_size, config.width),
                 (Part("head/kernel", config.vocab_size),), "linear")  # fmt: skip
