"""From a run's folder to a system that answers questions."""

import json
import os
import pathlib

import numpy as np

from gradejax.experts.features import FeatureStore
from gradejax.systems import SYSTEMS, asking
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.describe import abstract_state, shape_of
from gradejax.systems.grade.system import Anchors, GradeSystem
from gradejax.tasks.base import Example
from gradejax.training.checkpoint import Checkpoints
from gradejax.training.files import write_atomic

ANCHORS = "anchors.json"
ANCHOR_FEATURES = "anchors.npz"


def restore(path: str | os.PathLike, *, step: int | None = None,
            store: str | os.PathLike | None = None) -> GradeSystem:  # fmt: skip
    """Rebuild a trained system.

    Args:
      path: a run's workdir (the first seed's), or a seed's folder in it.
      step: which checkpoint; the newest by default.
      store: folder of a feature store, so that what experts said is kept; None keeps nothing.

    Raises:
      FileNotFoundError: no such folder, or no checkpoints in it.
      CheckpointError: the step is not there, or does not fit.
      ValueError: a system this version does not know; lists the choices.
    """
    folder = pathlib.Path(path)
    if not (folder / "checkpoints").is_dir():
        raise FileNotFoundError(f"{folder} holds no checkpoints; give the --workdir of a run")
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        meta = checkpoints.meta(step)
        if meta.get("system") not in SYSTEMS:
            raise ValueError(
                f"unknown system {meta.get('system')!r}; choose from {', '.join(sorted(SYSTEMS))}"
            )
        registry = registry_of(meta["pool"])
        frozen = asking.open_frozen(registry, None if store is None else FeatureStore(store))
        shape = shape_of(meta, frozen.pool(), frozen.trunk.model.config)
        state = checkpoints.restore(abstract_state(shape, frozen.trunk.params), step)
    return GradeSystem(
        frozen=frozen, task=task_of(meta["task"]), shape=shape, params=state.params,
        memory=state.memory, calibration=state.calibration, anchors=load_anchors(folder),
    )  # fmt: skip


def save_anchors(folder: pathlib.Path, anchors: Anchors) -> None:
    """Write the anchors beside the checkpoints, atomically."""
    rows = [
        {
            "id": e.id, "question": e.question, "choices": e.choices, "answer": e.answer,
            "family": e.family, "source": e.source, "difficulty": e.difficulty,
            "meta": dict(e.meta),
        }
        for e in anchors.questions
    ]  # fmt: skip
    partial = folder / f".{ANCHOR_FEATURES}.tmp.npz"
    arrays = {f"features_{i}": f for i, f in enumerate(anchors.features)}
    np.savez(partial, available=anchors.available, **arrays)
    partial.replace(folder / ANCHOR_FEATURES)
    write_atomic(folder / ANCHORS, json.dumps(rows))


def load_anchors(folder: pathlib.Path) -> Anchors | None:
    """The anchors of a run, None if it has none."""
    if not ((folder / ANCHORS).exists() and (folder / ANCHOR_FEATURES).exists()):
        return None
    rows = json.loads((folder / ANCHORS).read_text())
    examples = tuple(
        Example(**row | {"choices": None if row["choices"] is None else tuple(row["choices"])})
        for row in rows
    )
    with np.load(folder / ANCHOR_FEATURES, allow_pickle=False) as z:
        features = tuple(z[f"features_{i}"] for i in range(len(z.files) - 1))
        return Anchors(examples, features, z["available"])
