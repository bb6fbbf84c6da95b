"""How a family's Hugging Face tensors are called and where they belong: data, no reading.

A tensor of a checkpoint is cut along its output axis into parts, each of which fills a place of one
of our arrays: q, k and v, apart or fused in the file (phi3, gpt2), fill places of one grouped
kernel. Both directions follow from the same entry.
"""

import dataclasses
from typing import Any

from gradejax.models.config import DecoderConfig
from gradejax.models.families import FAMILIES

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
      kind: "plain", taken as it stands and cut along its first axis, an (out, in) matrix among
        them; "conv", an (in, out) matrix to transpose (fault D02); "expert", an (out, in) matrix
        to transpose into an expert's; "interleaved", gate and up turn by turn along the last axis.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    kind: str = "plain"


# Tensors that a family's files are known to carry though no parameter belongs to them (D04).
IGNORED_SUFFIXES = dict.fromkeys(FAMILIES, (".self_attn.rotary_emb.inv_freq",)) | {
    "gpt2": (".attn.bias", ".attn.masked_bias")  # causal masks
}
# What names begin with in a file of the whole model; files of gpt2's trunk alone leave it out.
PREFIX = dict.fromkeys(FAMILIES, "model.") | {"gpt2": "transformer."}


def _matrix(name: str, inputs: int, parts: list[Part], bias: bool, kind="plain") -> list[Entry]:
    """The weight and bias of one torch module whose kernel's parts are ``parts``."""
    total = sum(p.size for p in parts)
    kernels = tuple(dataclasses.replace(p, path=f"{p.path}/kernel") for p in parts)
    shape = (inputs, total) if kind == "conv" else (total, inputs)
    out = [Entry(f"{name}.weight", shape, kernels, kind)]
    if bias:
        biases = tuple(Part(f"{p.path}/bias", p.size, p.at) for p in parts)
        out.append(Entry(f"{name}.bias", (total,), biases))
    return out


def qkv_parts(config: DecoderConfig, path: str) -> dict[str, Part]:
    """Places of q, k and v in the fused kernel [K, R + 2, H, E] and bias [K, R + 2, H]."""
    share = config.num_heads // config.num_kv_heads
    key = config.num_kv_heads * config.head_dim
    return {
        "q": Part(path, share * key, (ALL, slice(0, share))),
        "k": Part(path, key, (ALL, share)),
        "v": Part(path, key, (ALL, share + 1)),
    }


def gated_parts(config: DecoderConfig, path: str) -> dict[str, Part]:
    """Places of gate and up in the fused kernel [2, F, E]."""
    return {w: Part(path, config.mlp_width, (i,)) for i, w in enumerate(("gate", "up"))}


def _norm(name: str, path: str, size: int, bias: bool = False) -> list[Entry]:
    kinds = {"weight": "scale", "bias": "bias"} if bias else {"weight": "scale"}
    return [Entry(f"{name}.{k}", (size,), (Part(f"{path}/{v}", size),)) for k, v in kinds.items()]


def _attention(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    heads = qkv_parts(c, f"{ours}/qkv")
    if c.family == "phi3":
        table = _matrix(f"{hf}.qkv_proj", c.width, list(heads.values()), c.qkv_bias)
    else:
        table = []
        for letter, part in heads.items():
            table += _matrix(f"{hf}.{letter}_proj", c.width, [part], c.qkv_bias)
    size = c.num_heads * c.head_dim
    table += _matrix(f"{hf}.o_proj", size, [Part(f"{ours}/o", c.width)], c.out_bias)
    if c.qk_norm:
        for letter in "qk":
            table += _norm(f"{hf}.{letter}_norm", f"{ours}/{letter}_norm", c.head_dim)
    if c.sinks:
        table.append(Entry(f"{hf}.sinks", (c.num_heads,), (Part(f"{ours}/sinks", c.num_heads),)))
    return table


def _mlp(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    gated, down = gated_parts(c, f"{ours}/gate_up"), Part(f"{ours}/down", c.width)
    if c.family == "phi3":
        table = _matrix(f"{hf}.gate_up_proj", c.width, list(gated.values()), c.mlp_bias)
    else:
        table = []
        for word, part in gated.items():
            table += _matrix(f"{hf}.{word}_proj", c.width, [part], c.mlp_bias)
    return table + _matrix(f"{hf}.down_proj", c.mlp_width, [down], c.mlp_bias)


def _mixtral_experts(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    """One matrix an expert in the file: w1 gate, w3 up, w2 down."""
    router = Part(f"{ours}/router", c.experts)
    table = _matrix(f"{hf}.gate", c.width, [router], False)
    for x in range(c.experts):
        for i, word in enumerate(("w1", "w3")):
            part = Part(f"{ours}/gate_up", c.mlp_width, (x, ALL, i))
            table += _matrix(f"{hf}.experts.{x}.{word}", c.width, [part], False, "expert")
        down = Part(f"{ours}/down", c.width, (x,))
        table += _matrix(f"{hf}.experts.{x}.w2", c.mlp_width, [down], False, "expert")
    return table


def _gpt_oss_experts(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    """All experts in one tensor, (in, out) already, gate and up turn by turn."""
    x, e, f = c.experts, c.width, c.mlp_width
    part = lambda path: (Part(f"{ours}/{path}", x),)  # noqa: E731
    return [
        *_matrix(f"{hf}.router", e, [Part(f"{ours}/router", x)], True),
        Entry(f"{hf}.experts.gate_up_proj", (x, e, 2 * f), part("gate_up/kernel"), "interleaved"),
        Entry(f"{hf}.experts.gate_up_proj_bias", (x, 2 * f), part("gate_up/bias"), "interleaved"),
        Entry(f"{hf}.experts.down_proj", (x, f, e), part("down/kernel")),
        Entry(f"{hf}.experts.down_proj_bias", (x, e), part("down/bias")),
    ]


def _gpt2_layer(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    heads = list(qkv_parts(c, f"{ours}/attn/qkv").values())
    part = lambda path, size: [Part(f"{ours}/{path}", size)]  # noqa: E731
    conv = lambda name, inputs, parts: _matrix(f"{hf}.{name}", inputs, parts, True, "conv")  # noqa: E731
    return [
        *_norm(f"{hf}.ln_1", f"{ours}/attn_norm", c.width, True),
        *conv("attn.c_attn", c.width, heads),
        *conv("attn.c_proj", c.width, part("attn/o", c.width)),
        *_norm(f"{hf}.ln_2", f"{ours}/mlp_norm", c.width, True),
        *conv("mlp.c_fc", c.width, part("mlp/up", c.mlp_width)),
        *conv("mlp.c_proj", c.mlp_width, part("mlp/down", c.width)),
    ]


# Names of the norms around the two halves of a block, without and with norms after them.
_NORMS = {
    False: {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"},
    True: {"input_layernorm": "attn_norm", "post_attention_layernorm": "attn_post_norm",
           "pre_feedforward_layernorm": "mlp_norm", "post_feedforward_layernorm": "mlp_post_norm"},
}  # fmt: skip


def _layer(c: DecoderConfig, hf: str, ours: str) -> list[Entry]:
    table = []
    for name, path in _NORMS[c.post_norms].items():
        table += _norm(f"{hf}.{name}", f"{ours}/{path}", c.width)
    table += _attention(c, f"{hf}.self_attn", f"{ours}/attn")
    if c.family == "mixtral":
        return table + _mixtral_experts(c, f"{hf}.block_sparse_moe", f"{ours}/mlp")
    if c.family == "gpt_oss":
        return table + _gpt_oss_experts(c, f"{hf}.mlp", f"{ours}/mlp")
    return table + _mlp(c, f"{hf}.mlp", f"{ours}/mlp")


def weight_table(config: DecoderConfig) -> list[Entry]:
    """Every tensor that a checkpoint of this config must hold (the head apart when tied).

    The embedding stands first.
    """
    c = config
    embed = lambda name, path, rows: Entry(  # noqa: E731
        f"{name}.weight", (rows, c.width), (Part(f"{path}/embedding", rows),)
    )
    if c.family == "gpt2":
        table = [embed("transformer.wte", "embedding", c.vocab_size),
                 embed("transformer.wpe", "positions", c.max_positions)]  # fmt: skip
        for i in range(c.num_layers):
            table += _gpt2_layer(c, f"transformer.h.{i}", f"layers_{i}")
        table += _norm("transformer.ln_f", "norm", c.width, True)
    else:
        table = [embed("model.embed_tokens", "embedding", c.vocab_size)]
        for i in range(c.num_layers):
            table += _layer(c, f"model.layers.{i}", f"layers_{i}")
        table += _norm("model.norm", "norm", c.width)
    if not c.tied:
        table.append(head_entry(c))
    return table


def head_entry(config: DecoderConfig) -> Entry:
    """The output head; in a tied checkpoint it may stand beside the embedding, if equal to it."""
    return Entry("lm_head.weight", (config.vocab_size, config.width),
                 (Part("head/kernel", config.vocab_size),))  # fmt: skip
