"""The questions of a run: which task, which split, and which of them fit the pool.

`config.task.name` is "reasoning_gym" (the shipped questions; with a subset, any of its generators),
"jsonl" (one file, split by a hash of the id), a benchmark's name, or any other name with a training
and a held-out file.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.config import ConfigError
from gradejax.tasks import benchmarks
from gradejax.tasks.answers import KINDS
from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.convert import read_jsonl, to_examples
from gradejax.tasks.data import infer_kind, load_jsonl, load_task, resolve_path, twin_golds
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.shuffle import shuffle_choices
from gradejax.tasks.splits import item_key, split_by_id, without_copies

MOST_GENERATED = 20_000  # questions of a split that generators are asked for
_SHOWN = 5  # ids named in one sentence
# a small file's hash may put all its items on one side; other salts are as good
_SALTS = tuple(f"heldout{i}" for i in range(100))


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """What is asked.

    Attributes:
      name: "reasoning_gym", "jsonl", a benchmark's name, or any name with the two files.
      kind, format: how file tasks are graded and asked; "" chooses.
      train_file, heldout_file: JSONL of id, question, choices, answer.
      train_questions, heldout_questions: at most how many to take of each (0 takes all there are
        of a file or a benchmark).
      path: the file of "jsonl"; for a benchmark a folder of JSONL ("": GRADEJAX_DATA, then the
        hub).
      subset: of a benchmark, "" its default; of reasoning_gym a generator, several joined by "+",
        or a composite's YAML file ("": the shipped questions).
      train_split, heldout_split: of a benchmark; "": train and test ("dev" is cut from train, and
        then "fit", the rest, is trained on).
      split_test: a benchmark with a test set only is cut in two, knowing that figures on a part of
        it are no published figures.
      heldout_share: of a file that is cut.
      shuffle_seed: of the options' order, by item; -1 leaves it as published.
      shots: worked examples in the experts' prompts, from training or development items.
    """

    name: str
    kind: str
    format: str
    train_file: str
    heldout_file: str
    train_questions: int
    heldout_questions: int
    path: str = ""
    subset: str = ""
    train_split: str = ""
    heldout_split: str = ""
    split_test: bool = False
    heldout_share: float = 0.4
    shuffle_seed: int = -1
    shots: int = 0

    def __post_init__(self):
        for name in ("train_questions", "heldout_questions"):
            value = getattr(self, name)
            if self.name == "reasoning_gym" and not 1 <= value <= MOST_GENERATED:
                raise ValueError(f"{name} must be in 1 to {MOST_GENERATED}, got {value}")
            if value < 0:
                raise ValueError(f"{name} must be at least 0 (0 takes all of a file), got {value}")
        if self.shots < 0:
            raise ValueError(f"shots must be at least 0, got {self.shots}")
        if not 0 < self.heldout_share < 1:
            raise ValueError(f"heldout_share must be between 0 and 1, got {self.heldout_share}")
        if self.format and self.format not in FORMATS:
            raise ValueError(
                f"unknown format {self.format!r}; choose from {', '.join(sorted(FORMATS))}"
            )


class Questions(NamedTuple):
    """What a task's settings mean.

    Attributes:
      entry: for `systems.description.task_of`.
      train, heldout: all there are, in order; a run takes the first that fit its pool.
      notes: what a reader of the figures must know.
      few_will_do: the training set may be smaller than what the config's anchors ask for.
    """

    entry: Mapping[str, Any]
    train: Sequence[Example]
    heldout: Sequence[Example]
    notes: tuple[str, ...] = ()
    few_will_do: bool = False


def questions_of(settings: TaskSettings) -> Questions:
    """The questions that settings name.

    Raises:
      ConfigError, ValueError: with what was expected, what was got and the choices.
    """
    if settings.kind and settings.kind not in KINDS:
        raise ConfigError(
            f"config.task.kind must be one of {', '.join(sorted(KINDS))}, or \"\" to choose by the "
            f"answers; got {settings.kind!r}"
        )
    if settings.name == "reasoning_gym":
        found = _generated(settings) if settings.subset else _shipped(settings)
    elif settings.name == "jsonl":
        found = _one_file(settings)
    elif settings.train_file or settings.heldout_file:
        found = _two_files(settings)
    elif settings.name in benchmarks.BENCHMARKS:
        found = _benchmark(settings)
    else:
        raise ConfigError(
            f"config.task {settings.name!r} needs task.train_file and task.heldout_file (JSONL of "
            "id, question, choices, answer); without them choose the name from reasoning_gym, "
            f"jsonl (with task.path), {', '.join(benchmarks.BENCHMARKS)}"
        )
    if settings.shuffle_seed >= 0:
        train, heldout = (
            [shuffle_choices(e, settings.shuffle_seed) for e in rows]
            for rows in (found.train, found.heldout)
        )
        found = found._replace(train=train, heldout=heldout)
    if settings.shots and settings.name not in benchmarks.BENCHMARKS:
        raise ConfigError(
            f"config.task.shots is for benchmarks, which say where worked examples come from; the "
            f"task is {settings.name!r}"
        )
    return found


def _shipped(settings: TaskSettings) -> Questions:
    from experiments.tiny_corpus import questions

    sets = []
    for split, key in (("grade", "train_questions"), ("heldout", "heldout_questions")):
        try:
            sets.append(questions(split, getattr(settings, key)))
        except ValueError as error:
            raise ConfigError(
                f"config.task.{key} is {getattr(settings, key)}, more than there are: {error}"
            ) from error
    return Questions({"name": "reasoning_gym"}, *sets)


def _generated(settings: TaskSettings) -> Questions:
    from gradejax.tasks.benchmarks import reasoning_gym as any_lib

    train, heldout, notes = any_lib.train_and_heldout(
        any_lib.generated_of(settings.subset), train=settings.train_questions,
        heldout=settings.heldout_questions,
    )  # fmt: skip
    entry = {"name": "reasoning_gym", "generator": settings.subset}
    return Questions(entry, train, heldout, notes, few_will_do=True)


def _two_files(settings: TaskSettings) -> Questions:
    files = {"train_file": settings.train_file, "heldout_file": settings.heldout_file}
    if not all(files.values()):
        raise ConfigError(
            f"config.task {settings.name!r} needs both task.train_file and task.heldout_file"
        )
    loaded = {}
    for key, path in files.items():
        try:
            loaded[key] = list(load_task(path, kind=settings.kind or None).examples)
        except (ValueError, OSError) as error:
            raise ConfigError(f"config.task.{key}: {error}") from error
    found = [_own(rows, f"config.task.{key}", files[key]) for key, rows in loaded.items()]
    (train, heldout), notes = zip(*found, strict=True)
    if {e.family for e in train}.isdisjoint(e.family for e in heldout):
        # named after their files, which says nothing: families are compared between the two
        train, heldout = (
            [dataclasses.replace(e, family=settings.name) for e in rows]
            for rows in (train, heldout)
        )
    kind = settings.kind or infer_kind(train, files["train_file"])
    if not settings.kind and infer_kind(heldout, files["heldout_file"]) != kind:
        raise ConfigError(
            f"config.task.train_file holds answers of the kind {kind}, config.task.heldout_file of "
            f"{infer_kind(heldout)}; set config.task.kind"
        )
    entry = {"name": settings.name, "kind": kind, "format": settings.format}
    return Questions(entry, train, heldout, sum(notes, ()))


def _own(examples: Sequence[Example], key: str, path: Any):
    """(the items of a file that is no benchmark's which can be graded, notes of the others).

    Raises:
      ConfigError: its questions are one text, or none can be graded.
    """
    if len(examples) > 1 and len({item_key(e) for e in examples}) == 1:
        raise ConfigError(
            f"{key}: all {len(examples)} questions of {path} are one text; expected different "
            "questions"
        )
    twins = set(twin_golds(examples))
    if not twins:
        return list(examples), ()
    kept = [e for e in examples if e.id not in twins]
    odd = [e.id for e in examples if e.id in twins]
    why = "the right option stands among the options twice, so they cannot be graded"
    if not kept:
        raise ConfigError(f"{key}: in all {len(odd)} questions of {path} {why}: {_ids(odd)}")
    return kept, (f"{path}: of {len(examples)} questions these are left out; {why}: {_ids(odd)}",)


def _one_file(settings: TaskSettings) -> Questions:
    if not settings.path:
        raise ConfigError("config.task.name=jsonl needs config.task.path, a JSONL file")
    try:
        path, examples, entry, notes = _read_one(settings)
    except (ValueError, OSError) as error:
        raise ConfigError(f"config.task.path: {error}") from error
    if benchmarks.of_file(path.stem) is None:  # public benchmarks hold such items, and load
        examples, odd = _own(examples, "config.task.path", path)
        notes = (*notes, *odd)
    train, heldout, more = _cut(examples, settings.heldout_share, str(path))
    return Questions(entry, train, heldout, (*notes, *more), few_will_do=True)


def _read_one(settings: TaskSettings):
    """(path, items, task entry, notes) of the file of "jsonl"."""
    path = resolve_path(pathlib.Path(settings.path))
    spec = None if settings.kind else benchmarks.of_file(path.stem)
    if spec is not None:
        stem, _, split = path.stem.partition(".")
        subset = stem.removeprefix(spec.file).lstrip("_")
        subset = subset if subset in spec.subsets else spec.subsets[0]
        examples, notes = to_examples(spec, read_jsonl(path, subset, split or "test"))
        return path, examples, _graded_as(spec, settings, "jsonl"), notes
    examples = load_jsonl(path, family=path.stem.split(".")[0])
    kind = settings.kind or infer_kind(examples, path)
    load_task(path, kind=kind)  # the golds fit it
    return path, examples, {"name": "jsonl", "kind": kind, "format": settings.format}, ()


def _benchmark(settings: TaskSettings) -> Questions:
    spec = benchmarks.spec_named(settings.name)
    where = {"subset": settings.subset, "folder": settings.path or None}
    entry = _graded_as(spec, settings, spec.name)
    heldout_split = settings.heldout_split or "test"
    train_split = settings.train_split or ("fit" if heldout_split == "dev" else "train")
    if settings.split_test:
        loaded = benchmarks.load(spec.name, "test", **where)
        train, heldout, more = _cut(loaded.examples, settings.heldout_share, loaded.origin)
        more = (*more, "figures on a part of a test set are not its published figures")
        notes = (f"questions from {loaded.origin}", *loaded.notes, *more)
        parts = [loaded._replace(examples=tuple(x)) for x in (train, heldout)]
    else:
        if not settings.train_split and "train" not in spec.splits:
            raise ConfigError(
                f"{spec.name} has no training split, only {', '.join(spec.splits)}; name one in "
                "config.task.train_split, or set config.task.split_test=True to cut its test set"
            )
        if train_split == heldout_split:
            raise ConfigError(f"training and held-out questions are both {train_split!r}")
        parts = [
            benchmarks.load(spec.name, split, **where) for split in (train_split, heldout_split)
        ]
        kept, copies = without_copies(parts[0].examples, of=parts[1].examples)
        parts[0] = parts[0]._replace(examples=kept)
        notes = tuple(
            line
            for split, part in zip((train_split, heldout_split), parts, strict=True)
            for line in (f"{split} questions from {part.origin}", *part.notes)
        )
        if copies:
            notes += (f"training items left out as copies: {_ids(copies)}",)
    rows = [part.examples for part in parts]
    if settings.shots:
        rows = [
            benchmarks.few_shot_from(
                part, settings.shots, folder=where["folder"], subset=settings.subset
            )
            for part in parts
        ]
    return Questions(entry, *rows, notes, few_will_do=True)


def _graded_as(spec, settings: TaskSettings, name: str) -> dict[str, Any]:
    """The benchmark's own grader and prompt, unless the settings name others."""
    if settings.format and spec.kind != "code":
        return {"name": name, "kind": settings.kind or spec.kind, "format": settings.format}
    return {"name": name, "benchmark": spec.name}


def _cut(examples: Sequence[Example], share: float, what: str):
    """(train, held-out, notes) of one file, by a hash of the id, disjoint by text."""
    distinct, copies = without_copies(examples)
    notes = (f"{what}: left out as copies of other items: {_ids(copies)}",) if copies else ()
    for salt in _SALTS:
        heldout, train = split_by_id(distinct, fraction=share, salt=salt)
        if train and heldout:
            return train, heldout, notes
    raise ConfigError(f"{what}: {len(distinct)} question(s) cannot be split in two")


def choose(
    rows: Sequence[Example], wanted: int, fits: Callable[[Example], bool], name: str
) -> tuple[list[Example], tuple[str, ...]]:
    """The first `wanted` (0: all) questions that fit the pool, and what is to be said of it.

    Raises:
      ConfigError: none fits.
    """
    kept: list[Example] = []
    dropped: list[str] = []
    for example in rows:
        if wanted and len(kept) == wanted:
            break
        if fits(example):
            kept.append(example)
        else:
            dropped.append(example.id)
    notes = ()
    if dropped:
        notes = (
            f"of {len(kept) + len(dropped)} {name} questions these do not fit the orchestrator's "
            f"context and are left out: {_ids(dropped)}",
        )
    if not kept:
        raise ConfigError(f"no {name} question fits the pool: {notes[0] if notes else 'none'}")
    return kept, notes


def _ids(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f"{len(ids)} ({', '.join(ids[:_SHOWN])}{more})"
