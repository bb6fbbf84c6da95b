"""From a run's folder to a system that answers questions."""

import io
import json
import os
import pathlib
import zipfile
import zlib

import numpy as np

from gradejax.experts.features import FeatureStore
from gradejax.systems import SYSTEMS, asking
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.describe import abstract_state, shape_of
from gradejax.systems.grade.show import Origin
from gradejax.systems.grade.system import Anchors, GradeSystem
from gradejax.tasks.base import Example
from gradejax.training.checkpoint import CheckpointError, Checkpoints
from gradejax.training.digest import changed_experts
from gradejax.training.files import write_atomic

ANCHORS = "anchors.json"
ANCHOR_FEATURES = "anchors.npz"


def restore(path: str | os.PathLike, *, step: int | None = None,
            store: str | os.PathLike | None = None) -> GradeSystem:  # fmt: skip
    """Rebuild a trained system.

    A system whose anchors are gone or torn answers all the same; only ``swap`` refuses then.

    Args:
      path: a run's workdir (the first seed's), or a seed's folder in it.
      step: which checkpoint, a whole number; the newest by default.
      store: folder of a feature store, so that what experts said is kept; None keeps nothing.

    Raises:
      FileNotFoundError: no such folder, or no checkpoints in it.
      CheckpointError: the step is not there, is damaged, does not fit, or an expert's folder holds
        other weights or another tokenizer than the system was trained on.
      ValueError: no path, or a step that is no number; a system this version does not know (lists
        the choices); a model that is not where it was.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ValueError(f"restore expects the path of a run's workdir, got {path!r}")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | np.integer)):
        raise ValueError(f"step must be a whole number or None for the newest, got {step!r}")
    folder = pathlib.Path(path)
    if not (folder / "checkpoints").is_dir():
        raise FileNotFoundError(f"{folder} holds no checkpoints; give the --workdir of a run")
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        meta = checkpoints.meta(step)
        if meta.get("system") not in SYSTEMS:
            raise ValueError(
                f"unknown system {meta.get('system')!r}; choose from {', '.join(sorted(SYSTEMS))}"
            )
        registry = registry_of(meta["pool"], stored=True)
        frozen = asking.open_frozen(registry, None if store is None else FeatureStore(store))
        changed = changed_experts(meta.get("experts") or {}, asking.expert_facts(frozen))
        if changed and "experts" in meta:  # versions before kept none
            raise CheckpointError(
                f"the experts are not those that the system in {folder} was trained on:\n  "
                + "\n  ".join(changed)
                + "\nPut the old folders back; to use other experts, restore the system with the "
                "old ones and call its swap()."
            )  # fmt: skip
        shape = shape_of(meta, frozen.pool(), frozen.trunk.model.config)
        state = checkpoints.restore(abstract_state(shape, frozen.trunk.params), step)
        reached = checkpoints.latest_step() if step is None else int(step)
    anchors, without = load_anchors(folder, shape.pool.widths)
    others = tuple(sorted(p.name for p in folder.glob("seed_*") if p.is_dir()))
    return GradeSystem(
        frozen=frozen, task=task_of(meta["task"]), shape=shape, params=state.params,
        memory=state.memory, calibration=state.calibration, anchors=anchors,
        without_anchors=without, origin=Origin(str(folder), meta.get("seed"), reached, others),
    )  # fmt: skip


def save_anchors(folder: pathlib.Path, anchors: Anchors) -> None:
    """Write the anchors beside the checkpoints, atomically; left alone where they are the same.

    Raises:
      StorageError: the disk refused.
    """
    rows = [
        {
            "id": e.id, "question": e.question, "choices": e.choices, "answer": e.answer,
            "family": e.family, "source": e.source, "difficulty": e.difficulty,
            "meta": dict(e.meta),
        }
        for e in anchors.questions
    ]  # fmt: skip
    features = io.BytesIO()
    arrays = {f"features_{i}": f for i, f in enumerate(anchors.features)}
    np.savez(features, available=anchors.available, **arrays)
    for name, content in (
        (ANCHOR_FEATURES, features.getvalue()), (ANCHORS, json.dumps(rows).encode()),
    ):  # fmt: skip
        if not _holds(folder / name, content):
            write_atomic(folder / name, content)


def _holds(path: pathlib.Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def load_anchors(folder: pathlib.Path, widths) -> tuple[Anchors | None, str]:
    """The anchors of a run.

    Args:
      folder: a seed's folder.
      widths: each seat's feature width.

    Returns:
      (anchors, ""), or (None, what to do): a system can answer without them.
    """
    again = "the run's own command writes them again"
    for name in (ANCHORS, ANCHOR_FEATURES):
        if not (folder / name).exists():
            return None, f"{folder / name} is missing; {again}"
    try:
        rows = json.loads((folder / ANCHORS).read_text(encoding="utf-8"))
        examples = tuple(
            Example(**row | {"choices": None if row["choices"] is None else tuple(row["choices"])})
            for row in rows
        )
        with np.load(folder / ANCHOR_FEATURES, allow_pickle=False) as z:
            features = tuple(z[f"features_{i}"] for i in range(len(widths)))
            available = z["available"]
        shapes = [f.shape for f in (*features, available)]
        n = len(examples)
        wanted = [*((n, w) for w in widths), (n, len(widths))]
        if shapes != wanted:
            raise ValueError(f"features of shapes {shapes}, expected {wanted}")
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError,
            zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return None, f"{folder / ANCHORS} or {ANCHOR_FEATURES} is damaged ({what}); {again}"
    return Anchors(examples, features, available), ""
