"""Loads a benchmark from a folder of JSONL files, or from the hub through `datasets`.

The folder is the argument's, else the one that GRADEJAX_DATA names. Files are called
`<file>.<split>.jsonl`, or `<file>_<subset>.<split>.jsonl` where a benchmark has several subsets;
their rows are in the common format or in the hub's own columns. What a figure depends on is said:
where the rows came from, and any difference from the published counts.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gradejax.tasks.base import Example, Task
from gradejax.tasks.benchmarks.convert import read_jsonl, to_examples
from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place
from gradejax.tasks.data import DATA_FOLDER
from gradejax.tasks.splits import split_by_id

logger = logging.getLogger(__name__)

ALL = "all"
# A development split and what it leaves of the training set; cut, not published.
CUT_SPLITS = ("dev", "fit")
DEV_SHARE = 0.1


class NotAtHand(ValueError):
    """The benchmark is in no folder and cannot be fetched; says what was looked for and why not."""


class Loaded(NamedTuple):
    """A split of a benchmark.

    Attributes:
      spec: the benchmark.
      task: how replies to it are read and graded.
      examples: in the order of the source.
      origin: the files, or the hub's id and revision.
      notes: what a reader of its figures must know: counts that differ, items left out.
    """

    spec: BenchmarkSpec
    task: Task
    examples: tuple[Example, ...]
    origin: str
    notes: tuple[str, ...]


def load_split(
    spec: BenchmarkSpec,
    task: Task,
    split: str,
    *,
    subset: str = "",
    folder: str | os.PathLike | None = None,
    hub: bool = True,
    limit: int | None = None,
) -> Loaded:
    """One split of a benchmark.

    Args:
      spec: the benchmark.
      task: how it is graded.
      split: one that is published, or "dev" (a tenth of the training set, cut by a hash of the id)
        and "fit" (the rest of it) where there is a training set and no published "dev".
      subset: "" is the default one.
      folder: None looks into the folder that GRADEJAX_DATA names, then on the hub. One that is
        given is looked into alone.
      hub: False never goes there.
      limit: take about so many rows, which then are not counted.

    Raises:
      NotAtHand: neither in a folder nor to be had from the hub.
      ValueError: an unknown split or subset, a row that does not fit.
    """
    subset = spec.check_subset(subset)
    if split in CUT_SPLITS and split not in spec.splits and "train" in spec.splits:
        whole = load_split(spec, task, "train", subset=subset, folder=folder, hub=hub)
        parts = split_by_id(whole.examples, fraction=DEV_SHARE, salt="dev")
        return whole._replace(examples=parts[CUT_SPLITS.index(split)])
    if split not in spec.splits:
        cut = ", dev, fit" if "train" in spec.splits else ""
        raise ValueError(
            f"{spec.name} has no split {split!r}; choose from {', '.join(spec.splits)}{cut}"
        )
    rows, origin, partial = _find(spec, subset, split, folder, hub, limit)
    examples, notes = to_examples(spec, rows)
    if limit is None:
        counted = _count_notes(spec, subset, split, rows)
        notes = (*counted, *partial, *notes, *_gold_notes(task, spec, examples))
        for note in notes:
            logger.warning("%s.%s: %s", spec.name, split, note)
    return Loaded(spec, task, examples, origin, notes)


def _count_notes(spec: BenchmarkSpec, subset: str, split: str, rows: Sequence) -> list[str]:
    """The rows against the published number."""
    published = spec.counts.get((subset, split))
    if published is None and subset == ALL:
        published = sum(n for (_, s), n in spec.counts.items() if s == split)
    if published is None or len(rows) == published:
        return []
    return [f"{len(rows)} rows, published are {published}"]


def _gold_notes(task: Task, spec: BenchmarkSpec, examples: Sequence[Example]) -> list[str]:
    """Golds that the grader does not read as themselves: no reply to them could be right."""
    if spec.kind not in ("number", "integer"):
        return []
    odd = [
        e.id for e in examples if not task.grade(task.extract(f"ANSWER: {e.answer}", e), e)
    ]  # fmt: skip
    return [f"{len(odd)} golds are not read as their own answers: {_few(odd)}"] if odd else []


def _find(spec, subset, split, folder, hub, limit):
    """(rows, origin, notes) of the folder or the hub."""
    named = folder if folder is not None else os.environ.get(DATA_FOLDER)
    if named and not Path(named).is_dir():
        what = "the folder given" if folder is not None else DATA_FOLDER
        raise NotAtHand(f"{spec.name}: {what} is {str(named)!r}, which is no folder")
    looked = "no folder was given and GRADEJAX_DATA is not set"
    if named:
        files, missing = _files(spec, Path(named), subset, split)
        if files:
            rows = [row for path, part in files for row in read_jsonl(path, part, split)]
            if files[0][0].name == f"{spec.file}.{split}.jsonl" and subset != spec.subsets[0]:
                rows = [row for row in rows if _plain(row[0].get("subject", "")) == subset]
            notes = []
            if missing:
                notes.append(f"{len(missing)} subsets are not in the folder: {_few(missing)}")
            origin = str(files[0][0]) if len(files) == 1 else f"{len(files)} files of {named}"
            return rows[:limit], origin, notes
        looked = f"{' or '.join(missing[:2])} is not in {named}"
    if folder is not None or not hub:
        raise NotAtHand(f"{spec.name}.{split}: {looked}")
    from gradejax.tasks.benchmarks import hub as hub_lib

    subsets = _parts(spec, subset)[: 1 if limit else None]
    try:
        rows = [
            (row, Place(part, split, i), f"{spec.hub_id} {part} {split} row {i}")
            for part in subsets
            for i, row in enumerate(hub_lib.rows_of(spec, part, spec.splits[split], limit))
        ]
    except hub_lib.NoHub as error:
        raise NotAtHand(f"{spec.name}.{split}: {looked}, and {error}") from error
    return rows, f"{spec.hub_id}@{spec.revision}", []


def _parts(spec: BenchmarkSpec, subset: str) -> tuple[str, ...]:
    return tuple(s for s in spec.subsets if s != ALL) if subset == ALL else (subset,)


def _files(spec: BenchmarkSpec, folder: Path, subset: str, split: str):
    """([(file, subset)] that are there, names of those that are not)."""
    if subset == spec.subsets[0]:
        path = folder / f"{spec.file}.{split}.jsonl"
        if path.is_file():
            return [(path, subset)], []
    found, missing = [], []
    for part in _parts(spec, subset):
        stem = part if part.startswith(spec.file) else f"{spec.file}_{part}"
        path = folder / f"{stem}.{split}.jsonl"
        if path.is_file():
            found.append((path, part))
        else:
            missing.append(path.name)
    together = folder / f"{spec.file}.{split}.jsonl"
    if not found and subset != ALL and ALL in spec.subsets and together.is_file():
        return [(together, subset)], []  # of which only the subset's rows are taken
    if not found and subset == spec.subsets[0]:
        missing.insert(0, together.name)
    return found, missing


def _plain(subject: str) -> str:
    """A subject as subsets are written: "Counting & Probability" is counting_and_probability."""
    return subject.strip().lower().replace("&", "and").replace(" ", "_")


def _few(names: Sequence[str], n: int = 3) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
