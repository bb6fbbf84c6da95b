"""Sentence embeddings of a BERT encoder, as sentence-transformers computes them.

A folder of sentence-transformers says in ``modules.json`` what follows the encoder; mean pooling
over real tokens, with or without normalisation, is what is computed here, and what a folder without
that file gets (normalised).
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation.text import load_tokenizer
from gradejax.models.bert import Bert, mean_pooled
from gradejax.models.bert_weights import BertCheckpoint, load_bert
from gradejax.models.config import read_json

_STEP = 32  # texts are padded to a multiple of it, which bounds the compilations


@functools.partial(jax.jit, static_argnames=("model", "normalise"))
def _embed(model: Bert, params, tokens, mask, *, normalise: bool):
    return mean_pooled(model.apply(params, tokens, mask)[-1], mask, normalise=normalise)


def _pooling(folder: pathlib.Path) -> bool:
    """Whether the mean is normalised.

    Raises:
      ValueError: the folder asks for another pooling or for a module that is not known.
    """
    if not (folder / "modules.json").exists():
        return True
    listed = read_json(folder / "modules.json", list)
    if not all(isinstance(m, dict) for m in listed):
        raise ValueError(f"{folder / 'modules.json'}: expected objects with type and path")
    modules = [(str(m.get("type", "")).rsplit(".", 1)[-1], m.get("path", "")) for m in listed]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{folder} chains the modules {kinds}; supported: Transformer, Pooling, and Normalize"
        )
    raw = read_json(folder / modules[1][1] / "config.json")
    on = sorted(k for k, v in raw.items() if k.startswith("pooling_mode") and v is True)
    if raw.get("pooling_mode") == "mean" or on == ["pooling_mode_mean_tokens"]:
        return "Normalize" in kinds
    asked = on or raw.get("pooling_mode")
    raise ValueError(f"{folder} pools by {asked}; supported: pooling_mode_mean_tokens")


def _limit(folder: pathlib.Path, longest: int) -> int:
    file = folder / "sentence_bert_config.json"
    stated = read_json(file).get("max_seq_length") if file.exists() else None
    return longest if stated is None else min(int(stated), longest)


@dataclasses.dataclass(frozen=True)
class SentenceEncoder:
    """Texts to vectors.

    Attributes:
      checkpoint: the encoder.
      tokenizer: its tokenizer.
      max_tokens: longer texts are cut to it, [CLS] and [SEP] included.
      normalise: whether vectors have length 1.
    """

    checkpoint: BertCheckpoint
    tokenizer: Any
    max_tokens: int
    normalise: bool

    @classmethod
    def load(cls, path_or_id, dtype=jnp.float32, *, revision: str | None = None):
        """Load from a folder or a hub id.

        Raises:
          ValueError, FileNotFoundError: as ``load_bert``; no tokenizer; another pooling.
        """
        checkpoint = load_bert(path_or_id, dtype, revision=revision)
        folder = pathlib.Path(checkpoint.path)
        tokenizer = load_tokenizer(folder)
        if tokenizer is None:
            raise ValueError(f"{folder} has no tokenizer; expected tokenizer.json or vocab.txt")
        limit = _limit(folder, checkpoint.config.max_positions)
        return cls(checkpoint, tokenizer, limit, _pooling(folder))

    def encode(self, texts: Sequence[str], *, batch_size: int = 32) -> np.ndarray:
        """Vectors of texts, [N, E] float32, in order.

        Raises:
          TypeError: a single string instead of a sequence of them.
        """
        if isinstance(texts, str):
            raise TypeError("expected a sequence of texts, got one string; put it into a list")
        # Given in full: a tokenizer.json may carry a cut and a padding of its own.
        rows = [
            self.tokenizer(text, truncation=True, max_length=self.max_tokens, padding=False)[
                "input_ids"
            ]
            for text in texts
        ]
        out = np.zeros((len(rows), self.checkpoint.config.width), np.float32)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for at in range(0, len(order), batch_size):
            chosen = order[at : at + batch_size]
            longest = max(len(rows[i]) for i in chosen)
            length = min(-(-longest // _STEP) * _STEP, self.checkpoint.config.max_positions)
            tokens = np.zeros((batch_size, length), np.int32)
            mask = np.zeros((batch_size, length), bool)
            for r, i in enumerate(chosen):
                tokens[r, : len(rows[i])], mask[r, : len(rows[i])] = rows[i], True
            vectors = _embed(self.checkpoint.model, self.checkpoint.params, tokens, mask,
                             normalise=self.normalise)  # fmt: skip
            out[chosen] = np.asarray(vectors)[: len(chosen)]
        return out
