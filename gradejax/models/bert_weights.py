"""Loading a BERT encoder from a Hugging Face folder: names as data, strictly."""

import dataclasses
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from gradejax.models.bert import Bert, BertConfig, bert_config
from gradejax.models.config import read_json
from gradejax.models.hub import commit_of, resolve
from gradejax.models.lazy import LazyTensor, empty, to_device
from gradejax.models.tensor_check import check_values
from gradejax.models.weight_files import check_names, check_shape, digest_of, open_weights

_LINEAR = {"attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v",
           "attention.output.dense": "o", "intermediate.dense": "up", "output.dense": "down"}
_NORM = {"attention.output.LayerNorm": "attn_norm", "output.LayerNorm": "mlp_norm"}
# Carried by bert's files though no parameter here belongs to them: the pooler and heads of other
# tasks, and a buffer (fault D04).
_IGNORED = re.compile(r"(bert\.)?(pooler\.dense\.|embeddings\.position_ids$)|cls\.")


def bert_weights(config: BertConfig) -> dict[str, tuple[str, bool]]:
    """Hugging Face name → (path in our tree, whether it is a matrix to transpose)."""
    out = {
        f"embeddings.{theirs}_embeddings.weight": (f"{ours}/embedding", False)
        for theirs, ours in (("word", "words"), ("position", "positions"), ("token_type", "kinds"))
    }
    norms = {"embeddings.LayerNorm": "norm"}
    for i in range(config.num_layers):
        norms |= {f"encoder.layer.{i}.{k}": f"layers_{i}/{v}" for k, v in _NORM.items()}
        for theirs, ours in _LINEAR.items():
            out[f"encoder.layer.{i}.{theirs}.weight"] = (f"layers_{i}/{ours}/kernel", True)
            out[f"encoder.layer.{i}.{theirs}.bias"] = (f"layers_{i}/{ours}/bias", False)
    for theirs, ours in norms.items():
        out |= {f"{theirs}.weight": (f"{ours}/scale", False),
                f"{theirs}.bias": (f"{ours}/bias", False)}  # fmt: skip
    return out


def _modern(name: str) -> str:
    """Names without the prefix of the heads' classes, and as LayerNorm is called today."""
    name = name.removeprefix("bert.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: "LayerNorm." + (
        "weight" if m[1] == "gamma" else "bias"), name)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BertCheckpoint:
    """A frozen encoder as loaded.

    Attributes:
      config: its shape.
      params: flax tree for ``Bert.apply``.
      digest: sha256 over the weights' files and config.json.
      n_params: number of parameters.
      path: the folder.
      commit: of the hub snapshot the folder is; None for another folder.
    """

    config: BertConfig
    params: Any
    digest: str
    n_params: int
    path: str
    commit: str | None

    @property
    def model(self) -> Bert:
        return Bert(self.config, dtype=jax.tree.leaves(self.params)[0].dtype)


def _shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    tokens = jnp.zeros((1, 2), jnp.int32)
    tree = jax.eval_shape(
        lambda: Bert(config).init(jax.random.key(0), tokens, jnp.ones((1, 2), bool))
    )
    return {k: v.shape for k, v in flatten_dict(tree["params"], sep="/").items()}


def _filled(
    name: str, tensor: LazyTensor, shape: tuple[int, ...], transpose: bool, dtype, where: str
) -> jax.Array:
    out = empty(shape, dtype)
    theirs = out.T if transpose else out
    for index, piece in tensor.pieces():
        check_values(name, piece, where, dtype)
        theirs[index] = piece
    return to_device(out)


def load_bert(
    path_or_id: str | pathlib.Path, dtype=jnp.float32, *, revision: str | None = None
) -> BertCheckpoint:
    """Load a BERT encoder (safetensors, sharded or not, or Flax msgpack).

    Args:
      path_or_id: a folder with config.json and weights, or a hub id.
      dtype: of the parameters: float32, bfloat16 or float16.
      revision: of a hub id.

    Raises:
      FileNotFoundError: the folder, its config or its weights are not there, or see ``resolve``.
      ValueError: another model type, a torn file, a missing, extra, doubled or mis-shaped tensor;
        or one with values that are no finite floats in ``dtype``; the message names it.
    """
    folder = resolve(path_or_id, revision)
    config = bert_config(read_json(folder / "config.json"))
    weights = open_weights(folder)
    found: dict[str, LazyTensor] = {}
    for name, tensor in weights.tensors.items():
        if _IGNORED.match(name):
            continue
        if (ours := _modern(name)) in found:
            raise ValueError(f"tensor {ours!r} stands in {folder} twice, once as {name!r}")
        found[ours] = tensor
    table, shapes = bert_weights(config), _shapes(config)
    where = f"{folder} does not fit its config.json (bert)"
    check_names(table, found, lambda name: False, where)
    flat = {}
    for name, (place, transpose) in table.items():
        shape = shapes[place]
        check_shape(name, found[name], shape[::-1] if transpose else shape, str(folder))
        flat[place] = _filled(name, found[name], shape, transpose, dtype, str(folder))
    if left := shapes.keys() - flat.keys():
        raise AssertionError(f"no tensor filled {sorted(left)}")
    return BertCheckpoint(
        config=config,
        params={"params": unflatten_dict(flat, sep="/")},
        digest=digest_of([*weights.files, folder / "config.json"]),
        n_params=sum(x.size for x in flat.values()),
        path=str(folder),
        commit=commit_of(folder),
    )
