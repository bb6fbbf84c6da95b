"""Adapters added into their base: a plain tree for a plain decoder."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.models.lora import Lora, check_unpacked


def merge(params, lora: Lora, weights) -> Any:
    """Base parameters with a mixture of adapters added in: a plain tree for a plain decoder.

    Only the seven matrices change. A tied embedding is never among them, so nothing leaks from the
    head into it (T15). The merged tree holds the adapters already: do not pass them again.

    Args:
      params: a decoder's {"params": tree}.
      lora: adapters.
      weights: [n], how much of each.

    Raises:
      ValueError: weights of another length, a layer or target that the tree lacks or has in
        another size.
    """
    weights = jnp.asarray(weights, jnp.float32)
    if weights.shape != (lora.count,):
        raise ValueError(f"merge needs one weight for each of {lora.count} adapters, got shape "
                         f"{weights.shape}")  # fmt: skip
    check_unpacked(lora)
    tree = dict(params["params"])
    for layer, entries in lora.tree.items():
        if layer not in tree:
            raise ValueError(f"the tree has no {layer}")
        block = {part: dict(tree[layer][part]) for part in ("attn", "mlp")}
        for target, entry in entries.items():
            delta = jnp.einsum(
                "n,nir,nro->io", weights * lora.scale, entry["a"].astype(jnp.float32),
                entry["b"].astype(jnp.float32),
            )  # fmt: skip
            _add(block, target, delta, layer)
        tree[layer] = {**tree[layer], **block}
    return {**params, "params": tree}


def _add(block, target: str, delta, layer: str) -> None:
    """Add [in, out] to the place of a target's kernel in a layer's fused tree."""
    part = "mlp" if target in ("gate", "up", "down") else "attn"
    name = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up"}.get(target, target)
    if target == "up" and "gate_up" in block["mlp"]:
        name = "gate_up"
    if name not in block[part]:
        raise ValueError(f"{layer} has no matrix for LoRA target {target!r}")
    kernel = block[part][name]["kernel"]
    if not isinstance(kernel, jax.Array | np.ndarray):
        raise ValueError(f"{layer}/{target}: the base is in 8 bits; merge before quantising")
    if name == "qkv":
        shared = kernel.shape[1] - 2 if target == "q" else 1
        size = (kernel.shape[3], kernel.shape[0] * shared * kernel.shape[2])
    elif name == "gate_up":
        size = kernel.shape[:0:-1]
    else:
        size = (math.prod(kernel.shape[1:]), kernel.shape[0])
    if delta.shape != size:
        raise ValueError(f"{layer}/{target}: the adapter is {delta.shape[0]}→{delta.shape[1]}, the "
                         f"tree's matrix {size[0]}→{size[1]}")  # fmt: skip
    wide = kernel.astype(jnp.float32)
    if name == "qkv":
        groups, places, head, width = kernel.shape
        at = {"q": slice(0, places - 2), "k": slice(places - 2, places - 1),
              "v": slice(places - 1, places)}[target]  # fmt: skip
        new = wide.at[:, at].add(delta.T.reshape(groups, -1, head, width))
    elif name == "gate_up":
        new = wide.at[int(target == "up")].add(delta.T)
    else:
        new = wide + delta.T.reshape(kernel.shape)
    block[part][name] = {**block[part][name], "kernel": new.astype(kernel.dtype)}
