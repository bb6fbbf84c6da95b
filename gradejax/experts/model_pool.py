"""Frozen models in memory, one copy for each distinct model."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from gradejax.experts.spec import ExpertSpec, ModelIdentity
from gradejax.generation.text import load_tokenizer
from gradejax.models.hf_weights import load_checkpoint


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A frozen model in memory.

    Attributes:
      identity: what it was loaded for.
      model, params: the linen module and its tree of arrays.
      tokenizer: None when the folder has none; such a model has states but no replies.
      digest: sha256 of weights and configuration.
      n_params: number of parameters.
      width: E, size of a feature vector.
      context: longest prompt + reply, in tokens.
      stop_ids: ids that end a reply according to config and generation config.
    """

    identity: ModelIdentity
    model: Any
    params: Any
    tokenizer: Any
    digest: str
    n_params: int
    width: int
    context: int
    stop_ids: tuple[int, ...]


Loader = Callable[[ExpertSpec], LoadedModel]


def load_local(spec: ExpertSpec) -> LoadedModel:
    """Load a folder in Hugging Face format, a .gguf file or a hub id (with the spec's revision).

    Raises: ValueError when there is no such folder though its parent is there, naming the models
      beside it; whatever `load_checkpoint` raises for a damaged one, or one the hub has not.
    """
    path = Path(spec.model)
    # A name whose parent folder exists is a path with a typo, not a model on the hub.
    if not path.exists() and path.parent != Path(".") and path.parent.is_dir():
        choices = sorted(str(p) for p in path.parent.iterdir() if (p / "config.json").is_file())
        there = f"choose from {choices}" if choices else f"{str(path.parent)!r} holds no model"
        raise ValueError(f"expert {spec.name!r}: no model folder {spec.model!r}; {there}")
    try:
        checkpoint = load_checkpoint(spec.model, dtype=jnp.dtype(spec.dtype),
                                     revision=spec.revision)
    except FileNotFoundError as error:
        raise ValueError(f"expert {spec.name!r}: {error}") from error
    return LoadedModel(
        identity=spec.identity, model=checkpoint.model, params=checkpoint.params,
        tokenizer=load_tokenizer(checkpoint.path), digest=checkpoint.digest,
        n_params=checkpoint.n_params, width=checkpoint.config.width,
        context=checkpoint.config.max_positions, stop_ids=checkpoint.generation_stop_ids)


class ModelPool:
    """Loads each distinct model once and hands out that one copy.

    Args:
      load: makes a LoadedModel of a spec; `load_local` unless a test brings another.
    """

    def __init__(self, load: Loader = load_local):
        self._load = load
        self._models: dict[ModelIdentity, LoadedModel] = {}
        self._lock = threading.Lock()

    def get(self, spec: ExpertSpec) -> LoadedModel:
        """The model of `spec`; specs with equal identities get the same object."""
        with self._lock:
            identity = spec.identity
            if identity not in self._models:
                self._models[identity] = self._load(spec)
            return self._models[identity]

    def release(self, spec: ExpertSpec) -> None:
        """Forget the model of `spec`, so that its memory is free once nobody else holds it."""
        with self._lock:
            self._models.pop(spec.identity, None)

    def __len__(self) -> int:
        return len(self._models)
