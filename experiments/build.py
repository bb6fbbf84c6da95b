"""From a config to typed values: the pool, the task, the questions, GRADE's settings.

The ConfigDict stops here. Everything is validated before any model runs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.config import ConfigError, to_dataclass
from gradejax.experts.budget import Limits
from gradejax.experts.registry import ExpertRegistry
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.config import GradeConfig
from gradejax.tasks.base import Example, Task
from gradejax.tasks.data import check_disjoint, load_task

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
    "missing" for a failed expert call."""

    path: str
    batch_size: int
    on_error: str


@dataclasses.dataclass(frozen=True)
class BudgetSettings:
    """What one start may spend at APIs; 0 is no limit. tokens: prompt and reply; money: in the
    currency of the prices; seconds: from the first call to the last one's begin."""

    tokens: int
    money: float
    seconds: float

    def __post_init__(self):
        for name in ("tokens", "money", "seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (no limit), got {getattr(self, name)}")

    @property
    def limits(self) -> Limits:
        return Limits(self.tokens or None, self.money or None, self.seconds or None)


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """name: "reasoning_gym" (shipped questions) or any name with the two files; kind and format of
    file tasks ("" chooses); how many questions to take from each (0 takes all of a file)."""

    name: str
    kind: str
    format: str
    train_file: str
    heldout_file: str
    train_questions: int
    heldout_questions: int


@dataclasses.dataclass(frozen=True)
class Run:
    """A validated run."""

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
    budget: BudgetSettings


def _questions(settings: TaskSettings):
    """(task entry, training questions, held-out questions)."""
    if settings.name == "reasoning_gym":
        from experiments.tiny_corpus import questions

        train = questions("grade", settings.train_questions)
        heldout = questions("heldout", settings.heldout_questions)
        return {"name": "reasoning_gym"}, train, heldout
    files = {"train_file": settings.train_file, "heldout_file": settings.heldout_file}
    if not all(files.values()):
        raise ConfigError(
            f"config.task {settings.name!r} needs task.train_file and task.heldout_file (JSONL of "
            "id, question, choices, answer); only 'reasoning_gym' brings its own questions"
        )
    loaded = {k: load_task(path, kind=settings.kind or None) for k, path in files.items()}
    kinds = {k: b.task.name for k, b in loaded.items()}
    train, heldout = (list(b.examples) for b in loaded.values())
    kind = settings.kind or _kind(train)
    if not settings.kind and _kind(heldout) != kind:
        raise ConfigError(
            f"the two files hold different kinds of answers ({kind}, {_kind(heldout)}); set "
            f"config.task.kind; files: {kinds}"
        )
    entry = {"name": settings.name, "kind": kind, "format": settings.format}
    cut = lambda rows, n: rows[:n] if n else rows  # noqa: E731
    return entry, cut(train, settings.train_questions), cut(heldout, settings.heldout_questions)


def _kind(examples) -> str:
    from gradejax.tasks.data import infer_kind

    return infer_kind(examples)


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
    entry, train, heldout = _questions(settings)
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows:
            raise ConfigError(f"there are no {name} questions; see config.task")
    check_disjoint({"train": train, "heldout": heldout})
    # Ids may repeat between files; the run's must not.
    train = [dataclasses.replace(e, id=f"train/{e.id}") for e in train]
    heldout = [dataclasses.replace(e, id=f"heldout/{e.id}") for e in heldout]
    families = []
    for example in (*train, *heldout):
        if example.family not in families:
            families.append(example.family)
    grade = to_dataclass(GradeConfig, config["grade"], "config.grade")
    if grade.anchors > len(train):
        raise ConfigError(
            f"config.grade.anchors is {grade.anchors}, more than the {len(train)} training "
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
        budget=to_dataclass(BudgetSettings, config["budget"], "config.budget"),
    )
