"""From a config to typed values: the pool, the task, the questions, GRADE's settings.

The ConfigDict stops here. Everything is validated before any model runs.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from experiments.config import ConfigError, to_dataclass
from experiments.questions import TaskSettings, choose, questions_of
from gradejax.experts.budget import Limits
from gradejax.experts.registry import ExpertRegistry
from gradejax.systems.description import registry_of, task_of
from gradejax.systems.grade.config import GradeConfig
from gradejax.tasks.base import Example, Task
from gradejax.tasks.chance import chance_level
from gradejax.tasks.splits import check_disjoint

MODES = ("train", "evaluate")
ON_ERROR = ("raise", "missing")
ON_LONG = ("error", "missing")
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
    "missing" for a failed expert call. on_long: "error", or "missing" for a prompt that does not
    fit its model; a question that does not fit the orchestrator is then left out, and counted."""

    path: str
    batch_size: int
    on_error: str
    on_long: str = "error"

    def __post_init__(self):
        _at_least(self, batch_size=1)
        for name, choices in (("on_error", ON_ERROR), ("on_long", ON_LONG)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        if not self.path.strip():
            raise ValueError(f"path must name a folder, got {self.path!r}")


@dataclasses.dataclass(frozen=True)
class BudgetSettings:
    """What one start may spend at APIs; 0 is no limit. tokens: prompt and reply; money: in the
    currency of the prices; seconds: from the first call to the last one's begin."""

    tokens: int
    money: float
    seconds: float

    def __post_init__(self):
        for name in ("tokens", "money", "seconds"):
            if not getattr(self, name) >= 0:  # nor is NaN a limit
                raise ValueError(f"{name} must be at least 0 (no limit), got {getattr(self, name)}")

    @property
    def limits(self) -> Limits:
        return Limits(self.tokens or None, self.money or None, self.seconds or None)


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
    budget: BudgetSettings
    wanted: tuple[int, int]
    few_will_do: bool
    notes: tuple[str, ...]


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


def _grade(section, agents: int, questions: int, few_will_do: bool) -> GradeConfig:
    grade = to_dataclass(GradeConfig, section, "config.grade")
    most = {"fixed_k": (agents, "agents of the pool")}
    if not few_will_do:  # else all training questions are anchors; see `with_questions`
        most["anchors"] = (questions, "training questions")
    for name, (high, what) in most.items():
        if getattr(grade, name) > high:
            raise ConfigError(
                f"config.grade.{name} must be at most {high}, the {what}; got "
                f"{getattr(grade, name)}"
            )
    return grade


def _check_disjoint(train, heldout) -> None:
    try:
        check_disjoint({"train": train, "heldout": heldout})
    except ValueError as error:
        raise ConfigError(
            f"config.task: the training and the held-out questions overlap: {error}"
        ) from error


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
            ("budget", BudgetSettings),
        )
    }  # fmt: skip
    try:
        registry = registry_of(config["pool"])
    except ValueError as error:
        raise ConfigError(f"config.pool: {error}") from error
    settings = to_dataclass(TaskSettings, config["task"], "config.task")
    try:
        found = questions_of(settings)
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(f"config.task: {error}") from error
    entry, train, heldout = found.entry, found.train, found.heldout
    wanted = (settings.train_questions, settings.heldout_questions)
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows:
            raise ConfigError(f"there are no {name} questions; see config.task")
    first = [rows[: n or None] for rows, n in zip((train, heldout), wanted, strict=True)]
    _check_disjoint(*first)
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
        grade=_grade(config["grade"], len(registry.agents), len(first[0]), found.few_will_do),
        wanted=wanted,
        few_will_do=found.few_will_do,
        notes=found.notes,
        **sections,
    )


def with_questions(run: Run, fits: Callable[[Example], bool]) -> Run:
    """The run with the questions it asks, and with notes of those it leaves out.

    Args:
      run: of `build`.
      fits: may a question be asked of this pool? Asked only where `store.on_long` is "missing".

    Raises:
      ConfigError: no question fits, or the questions chosen are not disjoint.
    """
    ask = fits if run.store.on_long == "missing" else lambda example: True
    train, train_notes = choose(run.train_questions, run.wanted[0], ask, "training")
    heldout, heldout_notes = choose(run.heldout_questions, run.wanted[1], ask, "held-out")
    _check_disjoint(train, heldout)
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
