"""Content addresses: the sha256 of everything that can change what is stored under it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Raise by one whenever a change to the engine can change a reply or a feature for equal inputs:
# all records made before then stop matching.
ENGINE_VERSION = 3


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, ASCII. NaN and infinity are errors.

    ASCII escapes also carry lone surrogates, which UTF-8 cannot.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_key(kind: str, parts: Mapping[str, Any]) -> str:
    """Hex sha256 of `kind` and `parts` (JSON values) under this engine's version.

    `kind` keeps apart what is computed from the same inputs ("reply", "trunk", "text_embedding").
    """
    body = canonical_json({"engine": ENGINE_VERSION, "kind": kind, "parts": dict(parts)})
    return hashlib.sha256(body.encode("ascii")).hexdigest()


def reply_key(*, model: Mapping[str, Any], prompt: str, sampling: Any, seed: int, sample: int,
              max_new_tokens: int, pooling: str) -> str:
    """Key of one reply.

    Args:
      model: what the provider says of the model (`LocalProvider.describe`): for a local one the
        digests of weights, configuration, tokenizer and chat template.
      prompt: the rendered prompt.
      sampling: frozen dataclass of the sampler's settings.
      seed, sample: the seat's seed, and the number of the sample among several to one prompt:
        without it a group of samples would be one text, G times.
    """
    # 1 and 1.0 are the same setting but not the same JSON.
    settings = {name: float(value) for name, value in dataclasses.asdict(sampling).items()}
    return content_key("reply", {
        "model": dict(model), "prompt": prompt, "sampling": settings, "seed": seed,
        "sample": sample, "max_new_tokens": max_new_tokens, "pooling": pooling})


def row_seed(seed: int, prompt: str, sample: int) -> int:
    """Seed of one generated row, in [0, 2³¹): depends on the row alone.

    So a reply is the same whichever rows share its batch and in whatever order they are asked.
    """
    body = canonical_json([seed, sample, prompt]).encode("ascii")
    return int.from_bytes(hashlib.sha256(body).digest()[:4], "little") >> 1
