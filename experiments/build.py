"""From a config to typed values: the pool, the task, the questions, GRADE's settings.

The ConfigDict stops here. Everything is validated before any model runs.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from experiments.config import ConfigError, to_dataclass
from experiments.questions import TaskSettings, choose, questions_of
from gradejax.experts.registry import ExpertRegistry
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.config import GradeConfig
from gradejax.tasks.base import Example, Task
from gradejax.tasks.chance import chance_level
from gradejax.tasks.splits import check_disjoint

MODES = ("train", "evaluate")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """steps: batches. batch_size: questions of one. devices: 0 takes all local ones."""

    steps: int
    batch_size: int
    devices: int

    def __post_init__(self):
        for name, low in (("steps", 1), ("batch_size", 1), ("devices", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """save_every: steps between checkpoints. keep: how many of the newest."""

    save_every: int
    keep: int

    def __post_init__(self):
        for name in ("save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """replicates: of the bootstrap. batch_size: questions decided at once."""

    replicates: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class StoreSettings:
    """path: folder of the feature store. batch_size: rows generated at once. on_error: "raise" or
    "missing" for a failed expert call. on_long: "error", or "missing" for a prompt that does not
    fit its model; a question that does not fit the orchestrator is then left out, and counted."""

    path: str
    batch_size: int
    on_error: str
    on_long: str = "error"


@dataclasses.dataclass(frozen=True)
class Run:
    """A validated run.

    The questions are all there are of a file or a benchmark until `with_questions` has chosen
    those that are asked: ``wanted`` of each (0: all), the first that fit the pool.
    """

    mode: str
    seeds: tuple[int, ...]
    registry: ExpertRegistry
    task: Task
    task_entry: Mapping[str, Any]
    train_questions: tuple[Example, ...]
    heldout_questions: tuple[Example, ...]
    families: tuple[str, ...]
    grade: GradeConfig
    train: TrainSettings
    checkpoint: CheckpointSettings
    evaluation: EvaluationSettings
    store: StoreSettings
    wanted: tuple[int, int]
    few_will_do: bool
    notes: tuple[str, ...]


def build(config: Mapping[str, Any]) -> Run:
    """Check a resolved config and load what it names.

    Raises:
      ConfigError, ValueError: with what was expected, what was got and the choices.
    """
    if config["mode"] not in MODES:
        raise ConfigError(f"config.mode must be one of {', '.join(MODES)}; got {config['mode']!r}")
    seeds = tuple(config["seeds"])
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"config.seeds must name one or more distinct seeds, got {seeds}")
    registry = registry_of(config["pool"])
    settings = to_dataclass(TaskSettings, config["task"], "config.task")
    found = questions_of(settings)
    entry, train, heldout = found.entry, found.train, found.heldout
    wanted = (settings.train_questions, settings.heldout_questions)
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows:
            raise ConfigError(f"there are no {name} questions; see config.task")
    first = [rows[: n or None] for rows, n in zip((train, heldout), wanted, strict=True)]
    check_disjoint(dict(zip(("train", "heldout"), first, strict=True)))
    # Ids may repeat between files; the run's must not.
    train = [dataclasses.replace(e, id=f"train/{e.id}") for e in train]
    heldout = [dataclasses.replace(e, id=f"heldout/{e.id}") for e in heldout]
    families = []
    for example in (*train, *heldout):
        if example.family not in families:
            families.append(example.family)
    grade = to_dataclass(GradeConfig, config["grade"], "config.grade")
    if grade.anchors > len(first[0]) and not found.few_will_do:
        raise ConfigError(
            f"config.grade.anchors is {grade.anchors}, more than the {len(first[0])} training "
            "questions"
        )
    return Run(
        mode=config["mode"],
        seeds=seeds,
        registry=registry,
        task=task_of(entry),
        task_entry=entry,
        train_questions=tuple(train),
        heldout_questions=tuple(heldout),
        families=tuple(sorted(families)),
        grade=grade,
        train=to_dataclass(TrainSettings, config["train"], "config.train"),
        checkpoint=to_dataclass(CheckpointSettings, config["checkpoint"], "config.checkpoint"),
        evaluation=to_dataclass(EvaluationSettings, config["evaluation"], "config.evaluation"),
        store=to_dataclass(StoreSettings, config["store"], "config.store"),
        wanted=wanted,
        few_will_do=found.few_will_do,
        notes=found.notes,
    )


def with_questions(run: Run, fits: Callable[[Example], bool]) -> Run:
    """The run with the questions it asks, and with notes of those it leaves out.

    Args:
      run: of `build`.
      fits: may a question be asked of this pool? Asked only where `store.on_long` is "missing".

    Raises:
      ConfigError: no question fits.
      ValueError: the questions chosen are not disjoint.
    """
    ask = fits if run.store.on_long == "missing" else lambda example: True
    train, train_notes = choose(run.train_questions, run.wanted[0], ask, "training")
    heldout, heldout_notes = choose(run.heldout_questions, run.wanted[1], ask, "held-out")
    check_disjoint({"train": train, "heldout": heldout})
    notes = (*run.notes, *train_notes, *heldout_notes)
    if any(example.choices for example in heldout):
        notes += (f"guessing is right on {chance_level(heldout):.1%} of the held-out questions",)
    grade = run.grade
    if grade.anchors > len(train):
        notes += (
            f"config.grade.anchors is {grade.anchors}; all {len(train)} training questions are "
            "anchors",
        )
        grade = dataclasses.replace(grade, anchors=len(train))
    return dataclasses.replace(
        run, train_questions=tuple(train), heldout_questions=tuple(heldout), grade=grade,
        notes=notes,
    )  # fmt: skip
