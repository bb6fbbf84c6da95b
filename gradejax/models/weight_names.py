"""How a family's Hugging Face tensors are called and where they belong: data, no reading.

Linear weights are (out, in) in torch and (in, ...) here; a fused tensor (phi3's qkv and gate_up)
is one entry of several parts, split along its rows (fault D02, trap T19).
"""

import dataclasses

from gradejax.models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint.

    Attributes:
      name: Hugging Face name.
      shape: its shape there.
      parts: (path in our tree, rows of the tensor) in order; one part unless fused.
      linear: whether it is an (out, in) matrix to transpose.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, int], ...]
    linear: bool


# Tensors that a family's files are known to carry though no parameter belongs to them (D04).
IGNORED_SUFFIXES = {
    "llama": (".self_attn.rotary_emb.inv_freq",),
    "phi3": (".self_attn.rotary_emb.inv_freq",),
    "qwen2": (".self_attn.rotary_emb.inv_freq",),
}


def _linear(name: str, rows: list[tuple[str, int]], columns: int, bias: bool) -> list[Entry]:
    total = sum(n for _, n in rows)
    kernels = tuple((f"{path}/kernel", n) for path, n in rows)
    out = [Entry(f"{name}.weight", (total, columns), kernels, True)]
    if bias:
        biases = tuple((f"{path}/bias", n) for path, n in rows)
        out.append(Entry(f"{name}.bias", (total,), biases, False))
    return out


def weight_table(config: DecoderConfig) -> list[Entry]:
    """Every tensor that a checkpoint of this config must hold (the head apart when tied)."""
    c = config
    vector = lambda name, path: Entry(name, (c.width,), ((path, c.width),), False)  # noqa: E731
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    table = [
        Entry("model.embed_tokens.weight", (c.vocab_size, c.width),
              (("embedding/embedding", c.vocab_size),), False),
        vector("model.norm.weight", "norm/scale"),
    ]  # fmt: skip
    for i in range(c.num_layers):
        hf, ours = f"model.layers.{i}", f"layers_{i}"
        table += [
            vector(f"{hf}.input_layernorm.weight", f"{ours}/attn_norm/scale"),
            vector(f"{hf}.post_attention_layernorm.weight", f"{ours}/mlp_norm/scale"),
        ]
        heads = [(f"{ours}/attn/q", q), (f"{ours}/attn/k", kv), (f"{ours}/attn/v", kv)]
        gated = [(f"{ours}/mlp/gate", c.mlp_width), (f"{ours}/mlp/up", c.mlp_width)]
        if c.family == "phi3":
            table += _linear(f"{hf}.self_attn.qkv_proj", heads, c.width, c.qkv_bias)
            table += _linear(f"{hf}.mlp.gate_up_proj", gated, c.width, c.mlp_bias)
        else:
            for letter, part in zip("qkv", heads, strict=True):
                table += _linear(f"{hf}.self_attn.{letter}_proj", [part], c.width, c.qkv_bias)
            for word, part in zip(("gate", "up"), gated, strict=True):
                table += _linear(f"{hf}.mlp.{word}_proj", [part], c.width, c.mlp_bias)
        table += _linear(f"{hf}.self_attn.o_proj", [(f"{ours}/attn/o", c.width)], q, c.out_bias)
        down = [(f"{ours}/mlp/down", c.width)]
        table += _linear(f"{hf}.mlp.down_proj", down, c.mlp_width, c.mlp_bias)
    if not c.tied:
        table.append(head_entry(c))
    return table


def head_entry(config: DecoderConfig) -> Entry:
    """The output head; in a tied checkpoint it may stand beside the embedding, if equal to it."""
    return Entry("lm_head.weight", (config.vocab_size, config.width),
                 (("head/kernel", config.vocab_size),), True)  # fmt: skip
