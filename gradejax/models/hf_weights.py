"""Reading models (a folder, a hub id, a .gguf file) and writing Hugging Face folders, strictly.

A tensor that is unknown, missing, there twice or of another shape is an error that names it and
both shapes; a tied head is compared with the embedding before it is dropped (fault D04). Tensors
are read one by one, so the host never holds the model twice.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradejax.models.config import (
    DecoderConfig,
    decoder_config,
    huggingface_config,
    ids_of,
    read_json,
)
from gradejax.models.config_check import check_entries
from gradejax.models.decoder import Decoder
from gradejax.models.families import COMMON_KEYS, family_of
from gradejax.models.gguf import read_gguf
from gradejax.models.hub import commit_of, resolve
from gradejax.models.quantize import Int8
from gradejax.models.saving import save_pair
from gradejax.models.tensors import params_from_tensors, tensors_from_params
from gradejax.models.weight_files import INDEX, WeightFiles, digest_of, is_file, open_weights


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A frozen model as loaded.

    Attributes:
      config: its shape.
      params: flax tree for ``Decoder.apply``.
      digest: sha256 over the weights' files and config.json (a .gguf file is both).
      n_params: number of parameters (a tied head counts once).
      generation_stop_ids: ids of config.json and generation_config.json that end a reply.
      path: the folder or .gguf file.
      commit: of the hub snapshot that the folder is; None for another path.
    """

    config: DecoderConfig
    params: Any
    digest: str
    n_params: int
    generation_stop_ids: tuple[int, ...]
    path: str
    commit: str | None = None

    @property
    def model(self) -> Decoder:
        """The decoder for ``params``; of weights in 8 bits with the dtype that the norms kept."""
        leaves = jax.tree.leaves(self.params, is_leaf=lambda x: isinstance(x, Int8))
        return Decoder(self.config, dtype=next(x.dtype for x in leaves if not isinstance(x, Int8)))


def _ignored(names: Any, raw: Mapping[str, Any], path: pathlib.Path) -> frozenset[str]:
    """``names`` as keys of a config that may be passed over; checked."""
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"ignore must list names of settings, got {names!r}")
    if not names:
        return frozenset()
    check_entries(raw)
    if absent := sorted(set(names) - raw.keys()):
        raise ValueError(f"ignore names settings that {path} lacks: {', '.join(absent)}")
    family = family_of(raw)
    if read := sorted(set(names) & {*COMMON_KEYS, *family.keys, *family.only, *family.aliases}):
        raise ValueError(
            f"ignore is for settings that are not read here; these of {path} are: {', '.join(read)}"
        )
    return frozenset(names)


def _open(path: pathlib.Path, ignore=()) -> tuple[DecoderConfig, WeightFiles, set[int]]:
    """Config, weights and stop ids of a folder or a .gguf file."""
    if path.is_file():
        if path.suffix != ".gguf":
            inside = path.suffix in (".safetensors", ".json", ".msgpack", ".bin")
            more = f"; give the folder it lies in, {str(path.parent)!r}" if inside else ""
            raise ValueError(f"expected a model folder or a .gguf file, got {str(path)!r}{more}")
        raw, tensors = read_gguf(path, ignore)
        config = decoder_config(raw)
        return config, WeightFiles((path,), tensors), set(config.stop_ids)
    if not is_file(path / "config.json"):
        inside = sorted(p.name for p in path.glob("*.gguf"))
        other = f"; to read {', '.join(inside[:3])}, give the file's own path" if inside else ""
        raise FileNotFoundError(
            f"{path / 'config.json'} does not exist; expected a model folder with config.json and "
            f"weights, or a .gguf file{other}"
        )
    raw = read_json(path / "config.json")
    try:
        config = decoder_config(raw, _ignored(ignore, raw, path / "config.json"))
    except ValueError as error:
        raise ValueError(f"{path / 'config.json'}: {error}") from error
    weights = open_weights(path)
    stops = set(config.stop_ids)
    generation = path / "generation_config.json"
    if is_file(generation):
        try:
            stops |= set(ids_of(read_json(generation).get("eos_token_id")))
        except ValueError as error:
            raise ValueError(f"{generation}: eos_token_id: {error}") from error
    return config, WeightFiles((*weights.files, path / "config.json"), weights.tensors), stops


def read_config(
    path_or_id: str | pathlib.Path, *, revision: str | None = None, ignore: Sequence[str] = ()
) -> DecoderConfig:
    """The shape of a model, without its weights; arguments and errors of `load_checkpoint`."""
    return _open(resolve(path_or_id, revision), ignore)[0]


def load_checkpoint(
    path_or_id: str | pathlib.Path, dtype=jnp.float32, *, revision: str | None = None,
    ignore: Sequence[str] = (),
) -> Checkpoint:  # fmt: skip
    """Load a model from a Hugging Face folder, a hub id or a .gguf file.

    Args:
      path_or_id: a folder with config.json and weights (safetensors, sharded or not, or Flax
        msgpack), a .gguf file, or ``owner/name`` on the hub; a tokenizer is not needed.
      dtype: of the parameters: float32, bfloat16 or float16.
      revision: branch, tag or commit of a hub id.
      ignore: settings of config.json, or metadata entries of a .gguf file, that are not known here
        and, as the caller knows, change nothing of what the model computes.

    Raises:
      FileNotFoundError: the folder, its config or its weights are not there; see also
        ``hub.resolve``.
      ValueError: an unsupported model type (the supported are listed), a torn file, a missing,
        extra, doubled or mis-shaped tensor, or one with values that are no finite floats in
        ``dtype``; the message names it. Or an unknown setting, or ``ignore`` names one that is
        read or not there.
    """
    path = resolve(path_or_id, revision)
    config, weights, stops = _open(path, ignore)
    params = params_from_tensors(config, weights.tensors, dtype=dtype, where=str(path))
    return Checkpoint(
        config=config,
        params=params,
        digest=digest_of(weights.files),
        n_params=sum(x.size for x in jax.tree.leaves(params)),
        generation_stop_ids=tuple(sorted(stops)),
        path=str(path),
        commit=commit_of(path),
    )


def save_checkpoint(
    path: str | pathlib.Path, config: DecoderConfig, params, *, dtype="float32", **extra: Any
) -> None:
    """Write config.json and model.safetensors in Hugging Face's names and layout.

    Written over another model, a kill leaves the old one, the new one, or a folder without config.

    Args:
      path: folder, made if missing; other files in it stay.
      config: the decoder's shape.
      params: its tree.
      dtype: of the stored tensors; written to config.json as ``dtype`` too.
      **extra: further entries of config.json (``pad_token_id``, ...).

    Raises:
      ValueError: the folder holds the index of a sharded checkpoint, which would be read in place
        of what is written; parameters in 8 bits; values that ``dtype`` cannot hold.
    """
    folder = pathlib.Path(path)
    if (folder / INDEX).exists():
        raise ValueError(
            f"{folder} holds a sharded checkpoint ({INDEX}), which would be read in place of the "
            "new model.safetensors; choose another folder, or remove the index and its shards"
        )
    kind = jnp.dtype(dtype)
    tensors = tensors_from_params(config, params, kind)
    raw = huggingface_config(config, dtype=kind.name, **extra)
    save_pair(folder, "model.safetensors", tensors, "config.json", raw)
