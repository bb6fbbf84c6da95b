"""Frozen models in memory, one copy for each distinct model."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from gradejax.experts.keys import canonical_json
from gradejax.experts.spec import ExpertSpec, ModelIdentity
from gradejax.generation.text import Chat, load_tokenizer
from gradejax.models.decoder import Decoder
from gradejax.models.hf_weights import load_checkpoint


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A frozen model, ready to be asked.

    Attributes:
      identity: what it was loaded for.
      model, params: the linen module and its tree of arrays.
      tokenizer, chat: None when the folder has no tokenizer; such a model has features only.
      digests: what of the folder can change a reply: {"weights", "config", "text"} hex sha256.
      n_params: number of parameters.
      width: E, size of a feature vector.
      context: longest prompt + reply, in tokens.
      stop_ids: union of the stop tokens of tokenizer, config and generation config.
    """

    identity: ModelIdentity
    model: Any
    params: Any
    tokenizer: Any
    chat: Any
    digests: dict[str, str]
    n_params: int
    width: int
    context: int
    stop_ids: tuple[int, ...]


Loader = Callable[[ExpertSpec], LoadedModel]


def load_local(spec: ExpertSpec) -> LoadedModel:
    """Load a folder in Hugging Face format.

    Raises: ValueError when there is no such folder, naming those beside it; whatever
      `load_checkpoint` raises for a damaged one.
    """
    path = Path(spec.model)
    if not path.is_dir():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        choices = sorted(str(p) for p in beside if (p / "config.json").is_file())
        raise ValueError(f"expert {spec.name!r}: no model folder {spec.model!r}; "
                         f"choose from {choices}")
    checkpoint = load_checkpoint(spec.model, dtype=jnp.dtype(spec.dtype))
    tokenizer = load_tokenizer(spec.model)
    config = checkpoint.config
    # The config is no part of the weights' digest, yet an edited rope base changes every reply.
    facts = dataclasses.asdict(config) | {"stop_ids": checkpoint.generation_stop_ids}
    stop_ids = set(checkpoint.generation_stop_ids) | set(config.stop_ids)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        stop_ids.add(int(tokenizer.eos_token_id))
    return LoadedModel(
        identity=spec.identity,
        model=Decoder(config, dtype=jnp.dtype(spec.dtype)),
        params=checkpoint.params,
        tokenizer=tokenizer,
        chat=None if tokenizer is None else Chat(tokenizer),
        digests={"weights": checkpoint.digest, "config": _digest(canonical_json(facts)),
                 "text": "" if tokenizer is None else text_digest(tokenizer)},
        n_params=checkpoint.n_params,
        width=config.width,
        context=config.max_positions,
        stop_ids=tuple(sorted(stop_ids)),
    )


def text_digest(tokenizer: Any) -> str:
    """Hex sha256 of everything that turns messages into ids and ids into text.

    Taken from the tokenizer in memory, not from its files: the same files in another layout
    (`chat_template.jinja` or a field of `tokenizer_config.json`) are the same tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else canonical_json(tokenizer.get_vocab())
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    template = tokenizer.chat_template
    return _digest(canonical_json([type(tokenizer).__name__, vocabulary, special, template]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


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
