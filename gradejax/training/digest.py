"""Digests of what a run must find again as it left it: states, questions, experts."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from gradejax.tasks.base import Example

_SHOWN = 5  # ids named in one message


def is_key(x) -> bool:
    """Whether a leaf is a typed random key."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def state_digest(state: Any) -> str:
    """sha256 of a state: path, shape, dtype and bytes of every leaf, by path.

    A typed key counts by its type and raw data; where a leaf lies (host, devices) makes no
    difference.
    """
    leaves = {
        "/".join(ocp.utils.tuple_path_from_keypath(path)): x
        for path, x in jax.tree_util.tree_flatten_with_path(state)[0]
    }
    total = hashlib.sha256()
    for name in sorted(leaves):
        x = leaves[name]
        host = np.asarray(jax.device_get(jax.random.key_data(x) if is_key(x) else x), order="C")
        total.update(f"{name} {host.shape} {x.dtype}\0".encode())
        total.update(host.tobytes())
    return total.hexdigest()


def text_digest(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def question_digests(examples: Sequence[Example]) -> dict[str, str]:
    """{id: digest} of questions in order: their text, options, answer, and what grades them."""
    return {
        e.id: text_digest([e.id, e.question, e.choices, e.answer, e.family, dict(e.meta)])[:16]
        for e in examples
    }


def changed_questions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between two ``question_digests``, in words; [] for nothing."""
    if list(old.items()) == list(new.items()):
        return []
    out = []
    for what, ids in (
        ("changed", [i for i in old if i in new and old[i] != new[i]]),
        ("gone", [i for i in old if i not in new]),
        ("new", [i for i in new if i not in old]),
    ):
        if ids:
            more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
            out.append(f"{len(ids)} {what}: {', '.join(ids[:_SHOWN])}{more}")
    return out or ["the same questions in another order"]


def changed_experts(old: Mapping[str, Mapping], new: Mapping[str, Mapping]) -> list[str]:
    """What differs between the facts {seat: {"weights": digest, "text": digest, ...}} of two pools.

    Args:
      old: as stored.
      new: as loaded now; see ``LocalProvider.describe``.
    """
    words = {"weights": "weights or config.json", "text": "tokenizer or chat template"}
    out = []
    for seat in sorted(old.keys() | new.keys()):
        a, b = old.get(seat), new.get(seat)
        if a is None or b is None:
            out.append(f"{seat}: {'new' if a is None else 'gone'}")
            continue
        facts = [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
        if facts:
            out.append(f"{seat}: other {', '.join(words.get(k, k) for k in facts)}")
    return out
