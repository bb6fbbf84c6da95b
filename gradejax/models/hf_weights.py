"""Reading and writing Hugging Face model folders, strictly.

A tensor that is unknown, missing, there twice or of another shape is an error that names it and
both shapes; a tied head is compared with the embedding before it is dropped (fault D04). Tensors
are read one by one, so the host never holds the model twice.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.serialization import msgpack_restore
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gradejax.models.config import (
    DecoderConfig,
    decoder_config,
    huggingface_config,
    ids_of,
    read_json,
)
from gradejax.models.decoder import Decoder
from gradejax.models.tensor_check import check_values
from gradejax.models.weight_names import IGNORED_SUFFIXES, Entry, head_entry, weight_table


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A frozen model as loaded.

    Attributes:
      config: its shape.
      params: flax tree for ``Decoder.apply``.
      digest: sha256 over the weights' files and config.json.
      n_params: number of parameters (a tied head counts once).
      generation_stop_ids: ids of config.json and generation_config.json that end a reply.
      path: the folder.
    """

    config: DecoderConfig
    params: Any
    digest: str
    n_params: int
    generation_stop_ids: tuple[int, ...]
    path: str

    @property
    def model(self) -> Decoder:
        return Decoder(self.config, dtype=jax.tree.leaves(self.params)[0].dtype)


@dataclasses.dataclass(frozen=True)
class _Source:
    """Names of a checkpoint's tensors and how to read one, as stored by torch."""

    files: tuple[pathlib.Path, ...]
    read: Mapping[str, Callable[[], np.ndarray]]


def _safetensors(files: Iterable[pathlib.Path]) -> _Source:
    read: dict[str, Callable[[], np.ndarray]] = {}
    files = tuple(files)
    for path in files:
        try:
            with safe_open(path, framework="numpy") as handle:
                names = list(handle.keys())
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing (named by the index beside it)") from None
        except SafetensorError as error:
            raise ValueError(
                f"{path} is torn or not a safetensors file ({error}); copy or download it again"
            ) from error
        for name in names:
            if name in read:
                raise ValueError(f"tensor {name!r} stands in two files of {path.parent}")

            def get(path=path, name=name):
                with safe_open(path, framework="numpy") as handle:
                    return handle.get_tensor(name)

            read[name] = get
    return _Source(files, read)


def _flax_msgpack(path: pathlib.Path) -> _Source:
    """A tree written by Hugging Face's Flax classes, under torch's names and layout."""
    try:
        tree = msgpack_restore(path.read_bytes())
        flat = flatten_dict(tree["params"] if set(tree) == {"params"} else tree, sep=".")
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is torn or not a Flax checkpoint ({error!r})") from error
    except Exception as error:  # msgpack's own exceptions share no public base
        raise ValueError(f"{path} is torn or not a Flax checkpoint ({error!r})") from error
    read = {}
    for name, array in flat.items():
        stem, _, leaf = name.rpartition(".")
        array = np.asarray(array)
        ours = f"{stem}.weight" if leaf in ("kernel", "embedding", "scale") else name
        if ours in read:
            raise ValueError(f"tensor {ours!r} stands in {path} twice, once as {leaf!r}")
        array = array.T if leaf == "kernel" else array
        read[ours] = lambda a=array: a
    return _Source((path,), read)


def _open(folder: pathlib.Path) -> _Source:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    flax_file = folder / "flax_model.msgpack"
    if index.exists():
        entries = read_json(index).get("weight_map")
        if not isinstance(entries, dict) or not entries:
            raise ValueError(f"{index} has no weight_map")
        source = _safetensors(folder / f for f in sorted(set(entries.values())))
        if lost := sorted(entries.keys() - source.read.keys()):
            raise ValueError(f"{index} lists tensors that no file holds: {', '.join(lost[:10])}")
        return source
    if single.exists():
        return _safetensors([single])
    if flax_file.exists():
        return _flax_msgpack(flax_file)
    raise FileNotFoundError(
        f"{folder} holds no weights; expected model.safetensors, model.safetensors.index.json or "
        "flax_model.msgpack"
    )


def _digest(files: Iterable[pathlib.Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    tree = jax.eval_shape(
        lambda: Decoder(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    )
    return {k: v.shape for k, v in flatten_dict(tree["params"], sep="/").items()}


def _ours(entry: Entry, array: np.ndarray, shapes) -> dict[str, np.ndarray]:
    """The parts of a tensor in our layout."""
    out, at = {}, 0
    for path, rows in entry.parts:
        part = array[at : at + rows] if len(entry.parts) > 1 else array
        out[path] = (part.T if entry.linear else part).reshape(shapes[path])
        at += rows
    return out


def _theirs(entry: Entry, flat: Mapping[str, np.ndarray]) -> np.ndarray:
    """Inverse of ``_ours``: one tensor in torch's layout from the parts in ours."""
    parts = []
    for path, rows in entry.parts:
        part = np.asarray(flat[path])
        parts.append(part.reshape(-1, rows).T if entry.linear else part.reshape(
            (rows, *entry.shape[1:])))  # fmt: skip
    return np.ascontiguousarray(np.concatenate(parts, axis=0))


def _check_names(config: DecoderConfig, table, source: _Source, folder) -> None:
    found = set(source.read)
    known = {e.name for e in table}
    ignored = {n for n in found if n.endswith(IGNORED_SUFFIXES[config.family])}
    if config.tied:
        ignored.add("lm_head.weight")  # compared below
    missing, extra = sorted(known - found), sorted(found - known - ignored)
    if missing or extra:
        lines = [f"{folder} does not fit its config.json ({config.family}):"]
        for what, names in (("missing tensors", missing),
                            ("tensors that no parameter wants", extra)):  # fmt: skip
            if names:
                more = f" and {len(names) - 10} more" if len(names) > 10 else ""
                lines.append(f"  {what}: {', '.join(names[:10])}{more}")
        raise ValueError("\n".join(lines))


def _checked(entry: Entry, array: np.ndarray, folder) -> np.ndarray:
    if tuple(array.shape) != entry.shape:
        raise ValueError(
            f"tensor {entry.name!r} of {folder} has shape {tuple(array.shape)}; its config.json "
            f"asks for {entry.shape}"
        )
    check_values(entry.name, array, str(folder))
    return array


def load_checkpoint(path: str | pathlib.Path, dtype=jnp.float32) -> Checkpoint:
    """Load a model from a Hugging Face folder (safetensors, sharded or not, or Flax msgpack).

    Args:
      path: the folder with config.json and weights; a tokenizer is not needed.
      dtype: of the parameters: float32, bfloat16 or float16.

    Raises:
      FileNotFoundError: the folder, its config or its weights are not there.
      ValueError: an unsupported model type (the supported are listed), a torn file, a missing,
        extra, doubled or mis-shaped tensor, one that holds no floats or NaN; the message names it.
    """
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"model folder {str(folder)!r} does not exist")
    raw = read_json(folder / "config.json")
    try:
        config = decoder_config(raw)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    source = _open(folder)
    table = weight_table(config)
    _check_names(config, table, source, folder)
    shapes, flat = _shapes(config), {}
    for entry in table:
        array = _checked(entry, source.read[entry.name](), folder)
        for name, part in _ours(entry, array, shapes).items():
            flat[name] = jnp.asarray(part, dtype)
    if config.tied and "lm_head.weight" in source.read:
        head = _checked(head_entry(config), source.read["lm_head.weight"](), folder)
        if not np.array_equal(head, source.read["model.embed_tokens.weight"]()):
            raise ValueError(
                f"{folder} says tie_word_embeddings, yet its lm_head.weight differs from "
                "model.embed_tokens.weight; set the flag to false to use the head"
            )
    if left := shapes.keys() - flat.keys():
        raise AssertionError(f"no tensor filled {sorted(left)}")
    stops = set(config.stop_ids)
    if (folder / "generation_config.json").exists():
        stops |= set(ids_of(read_json(folder / "generation_config.json").get("eos_token_id")))
    return Checkpoint(
        config=config,
        params={"params": unflatten_dict(flat, sep="/")},
        digest=_digest([*source.files, folder / "config.json"]),
        n_params=sum(x.size for x in flat.values()),
        generation_stop_ids=tuple(sorted(stops)),
        path=str(folder),
    )


def save_checkpoint(
    path: str | pathlib.Path, config: DecoderConfig, params, *, dtype="float32", **extra: Any
) -> None:
    """Write config.json and model.safetensors in Hugging Face's names and layout.

    Args:
      path: folder, made if missing; other files in it stay.
      config: the decoder's shape.
      params: its tree.
      dtype: of the stored tensors; written to config.json as ``dtype`` too.
      **extra: further entries of config.json (``pad_token_id``, ...).
    """
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    flat = flatten_dict(jax.device_get(params["params"]), sep="/")
    kind = jnp.dtype(dtype)
    tensors = {e.name: _theirs(e, flat).astype(kind) for e in weight_table(config)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private
    raw = huggingface_config(config, dtype=kind.name, **extra)
    (folder / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")
