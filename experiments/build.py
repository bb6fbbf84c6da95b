"""From a config to typed values: the pool, the task, the questions, GRADE's settings.

The ConfigDict stops here. Everything is validated before any model runs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from experiments.config import ConfigError, to_dataclass
from gradejax.experts.registry import ExpertRegistry
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.config import GradeConfig
from gradejax.tasks.answers import KINDS
from gradejax.tasks.base import Example, Task
from gradejax.tasks.data import check_disjoint, infer_kind, load_task, twin_golds
from gradejax.tasks.splits import item_key

MODES = ("train", "evaluate")
ON_ERROR = ("raise", "missing")
MOST_SHIPPED = 20_000  # questions of a split that the shipped generators are asked for
SEED_LIMIT = 2**32  # what a random key takes


def _at_least(settings, **lows: int) -> None:
    for name, low in lows.items():
        if getattr(settings, name) < low:
            raise ValueError(f"{name} must be at least {low}, got {getattr(settings, name)}")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """steps: batches. batch_size: questions of one. devices: 0 takes all local ones."""

    steps: int
    batch_size: int
    devices: int

    def __post_init__(self):
        _at_least(self, steps=1, batch_size=1, devices=0)
        there = jax.local_device_count()
        if self.devices > there:
            raise ValueError(
                f"devices must be at most {there}, the devices of this process (0 takes all), got "
                f"{self.devices}"
            )


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """save_every: steps between checkpoints. keep: how many of the newest."""

    save_every: int
    keep: int

    def __post_init__(self):
        _at_least(self, save_every=1, keep=1)


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """replicates: of the bootstrap. batch_size: questions decided at once."""

    replicates: int
    batch_size: int

    def __post_init__(self):
        _at_least(self, replicates=1, batch_size=1)


@dataclasses.dataclass(frozen=True)
class StoreSettings:
    """path: folder of the feature store. batch_size: rows generated at once. on_error: "raise" or
    "missing" for a failed expert call."""

    path: str
    batch_size: int
    on_error: str

    def __post_init__(self):
        _at_least(self, batch_size=1)
        if self.on_error not in ON_ERROR:
            raise ValueError(
                f"on_error must be one of {', '.join(ON_ERROR)}, got {self.on_error!r}"
            )
        if not self.path.strip():
            raise ValueError(f"path must name a folder, got {self.path!r}")


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """name: "reasoning_gym" (shipped questions) or any name with the two files; kind and format of
    file tasks ("" chooses); at most how many questions to take from each (0 takes all of a file).
    """

    name: str
    kind: str
    format: str
    train_file: str
    heldout_file: str
    train_questions: int
    heldout_questions: int

    def __post_init__(self):
        shipped = self.name == "reasoning_gym"
        for name in ("train_questions", "heldout_questions"):
            value = getattr(self, name)
            if shipped and not 1 <= value <= MOST_SHIPPED:
                raise ValueError(f"{name} must be in 1 to {MOST_SHIPPED}, got {value}")
            if value < 0:
                raise ValueError(f"{name} must be at least 0 (0 takes all of a file), got {value}")


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


def _questions(settings: TaskSettings):
    """(task entry, training questions, held-out questions)."""
    if settings.name == "reasoning_gym":
        from experiments.tiny_corpus import questions

        sets = []
        for split, key in (("grade", "train_questions"), ("heldout", "heldout_questions")):
            try:
                sets.append(questions(split, getattr(settings, key)))
            except ValueError as error:
                raise ConfigError(
                    f"config.task.{key} is {getattr(settings, key)}, more than there are: {error}"
                ) from error
        return {"name": "reasoning_gym"}, *sets
    files = {"train_file": settings.train_file, "heldout_file": settings.heldout_file}
    if not all(files.values()):
        raise ConfigError(
            f"config.task {settings.name!r} needs task.train_file and task.heldout_file (JSONL of "
            "id, question, choices, answer); only 'reasoning_gym' brings its own questions"
        )
    if settings.kind and settings.kind not in KINDS:
        raise ConfigError(
            f"config.task.kind must be one of {', '.join(sorted(KINDS))}, or \"\" to choose by the "
            f"answers; got {settings.kind!r}"
        )
    loaded = {}
    for key, path in files.items():
        try:
            loaded[key] = list(load_task(path, kind=settings.kind or None).examples)
        except (ValueError, OSError) as error:
            raise ConfigError(f"config.task.{key}: {error}") from error
        if len(loaded[key]) > 1 and len({item_key(e) for e in loaded[key]}) == 1:
            raise ConfigError(
                f"config.task.{key}: all {len(loaded[key])} questions of {path} are one text; "
                "expected different questions"
            )
        if twins := twin_golds(loaded[key]):
            raise ConfigError(
                f"config.task.{key}: in {len(twins)} questions of {path} the right option stands "
                f"among the options twice, so they cannot be graded; leave them out: "
                f"{', '.join(twins[:5])}"
            )
    train, heldout = loaded.values()
    kind = settings.kind or infer_kind(train)
    if not settings.kind and infer_kind(heldout) != kind:
        raise ConfigError(
            f"config.task.train_file holds answers of the kind {kind}, config.task.heldout_file of "
            f"{infer_kind(heldout)}; set config.task.kind"
        )
    entry = {"name": settings.name, "kind": kind, "format": settings.format}
    cut = lambda rows, n: rows[:n] if n else rows  # noqa: E731
    return entry, cut(train, settings.train_questions), cut(heldout, settings.heldout_questions)


def _seeds(config) -> tuple[int, ...]:
    seeds = tuple(config["seeds"])
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
            raise ConfigError(
                f"config.seeds must be whole numbers in 0 to {SEED_LIMIT - 1}, got {seed!r}"
            )
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"config.seeds must name one or more distinct seeds, got {seeds}")
    return seeds


def _grade(section, agents: int, questions: int) -> GradeConfig:
    grade = to_dataclass(GradeConfig, section, "config.grade")
    for name, most, what in (
        ("anchors", questions, "training questions"), ("fixed_k", agents, "agents of the pool"),
    ):  # fmt: skip
        if getattr(grade, name) > most:
            raise ConfigError(
                f"config.grade.{name} must be at most {most}, the {what}; got "
                f"{getattr(grade, name)}"
            )
    return grade


def build(config: Mapping[str, Any]) -> Run:
    """Check a resolved config and load what it names.

    Raises:
      ConfigError, ValueError: with what was expected, what was got and the choices.
    """
    if config["mode"] not in MODES:
        raise ConfigError(f"config.mode must be one of {', '.join(MODES)}; got {config['mode']!r}")
    seeds = _seeds(config)
    sections = {
        name: to_dataclass(cls, config[name], f"config.{name}")
        for name, cls in (
            ("train", TrainSettings), ("checkpoint", CheckpointSettings),
            ("evaluation", EvaluationSettings), ("store", StoreSettings),
        )
    }  # fmt: skip
    try:
        registry = registry_of(config["pool"])
    except ValueError as error:
        raise ConfigError(f"config.pool: {error}") from error
    settings = to_dataclass(TaskSettings, config["task"], "config.task")
    entry, train, heldout = _questions(settings)
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows:
            raise ConfigError(f"there are no {name} questions; see config.task")
    try:
        check_disjoint({"train": train, "heldout": heldout})
    except ValueError as error:
        raise ConfigError(
            f"config.task: the training and the held-out questions overlap: {error}"
        ) from error
    # Ids may repeat between files; the run's must not.
    train = [dataclasses.replace(e, id=f"train/{e.id}") for e in train]
    heldout = [dataclasses.replace(e, id=f"heldout/{e.id}") for e in heldout]
    families = []
    for example in (*train, *heldout):
        if example.family not in families:
            families.append(example.family)
    try:
        task = task_of(entry)
    except ValueError as error:
        raise ConfigError(f"config.task: {error}") from error
    return Run(
        mode=config["mode"],
        seeds=seeds,
        registry=registry,
        task=task,
        task_entry=entry,
        train_questions=tuple(train),
        heldout_questions=tuple(heldout),
        families=tuple(sorted(families)),
        grade=_grade(config["grade"], len(registry.agents), len(train)),
        **sections,
    )
