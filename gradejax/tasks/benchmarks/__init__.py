"""Published benchmarks: each a small module of data; `load(name, split)` gives its examples.

    load("gsm8k", "test")                      # $GRADEJAX_DATA/gsm8k.test.jsonl, else the hub
    load("mmlu", "test", subset="college_physics")
    load("gsm8k", "dev")                       # a tenth of train, by a hash of the id
"""

import os
import re

from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example, Task
from gradejax.tasks.benchmarks.aime2025 import AIME2025
from gradejax.tasks.benchmarks.arc_challenge import ARC_CHALLENGE
from gradejax.tasks.benchmarks.bbh_navigate import BBH_NAVIGATE
from gradejax.tasks.benchmarks.gpqa import GPQA
from gradejax.tasks.benchmarks.gsm8k import GSM8K
from gradejax.tasks.benchmarks.humaneval import HUMANEVAL
from gradejax.tasks.benchmarks.load import Loaded, NotAtHand, load_split
from gradejax.tasks.benchmarks.maths import MATH, MATH500
from gradejax.tasks.benchmarks.mmlu import MMLU
from gradejax.tasks.benchmarks.mmlu_pro import MMLU_PRO
from gradejax.tasks.benchmarks.mmlu_redux import MMLU_REDUX, MMLU_REDUX_ORIGINAL
from gradejax.tasks.benchmarks.spec import BenchmarkSpec
from gradejax.tasks.exemplars import with_exemplars
from gradejax.tasks.prompts import FORMATS

__all__ = [
    "BENCHMARKS",
    "BenchmarkSpec",
    "Loaded",
    "NotAtHand",
    "few_shot_from",
    "load",
    "load_split",
    "of_file",
    "spec_named",
    "task_named",
]

BENCHMARKS = {
    spec.name: spec
    for spec in (
        GSM8K, MMLU_PRO, GPQA, AIME2025, ARC_CHALLENGE, BBH_NAVIGATE, MMLU, MMLU_REDUX,
        MMLU_REDUX_ORIGINAL, MATH, MATH500, HUMANEVAL,
    )
}  # fmt: skip


def spec_named(name: str) -> BenchmarkSpec:
    """The benchmark called `name`; ValueError with the choices when there is none."""
    if name not in BENCHMARKS:
        raise ValueError(f"no benchmark {name!r}; choose from {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def task_named(name: str) -> Task:
    """How replies to a benchmark are read and graded."""
    spec = spec_named(name)
    if spec.kind == "code":
        # the sandbox is imported only by those who run programs
        from gradejax.tasks.code import make_code_task

        return make_code_task(spec.name, FORMATS[spec.slot])
    return make_task(spec.name, spec.kind, FORMATS[spec.slot])


def load(
    name: str,
    split: str = "test",
    *,
    subset: str = "",
    folder: str | os.PathLike | None = None,
    hub: bool = True,
    limit: int | None = None,
) -> Loaded:
    """A split of a benchmark; see `load_split`."""
    return load_split(
        spec_named(name), task_named(name), split, subset=subset, folder=folder, hub=hub,
        limit=limit,
    )  # fmt: skip


def of_file(stem: str) -> BenchmarkSpec | None:
    """The benchmark that a file's name speaks of ("mmlu_abstract_algebra.dev": mmlu), or None."""
    named = {spec.file: spec for spec in reversed(BENCHMARKS.values())}
    hits = [file for file in named if re.match(rf"{file}(?![a-z0-9])", stem)]
    return named[max(hits, key=len)] if hits else None


def few_shot_from(
    loaded: Loaded, k: int, *, folder: str | os.PathLike | None = None, subset: str = "",
    hub: bool = True, seed: int = 0,
) -> tuple[Example, ...]:  # fmt: skip
    """The examples of a split with k worked examples each, from training or development items.

    Raises:
      ValueError: the benchmark has a test set only, or too few items to show.
    """
    spec = loaded.spec
    if spec.exemplars is None:
        raise ValueError(
            f"{spec.name} has neither a training nor a development split, and worked examples are "
            f"never taken from a test set; set the number of shots to 0"
        )
    pool = load_split(spec, loaded.task, spec.exemplars, subset=subset, folder=folder, hub=hub)
    return with_exemplars(
        loaded.examples, pool.examples, loaded.task, spec.working, k=k, seed=seed,
        key=spec.exemplar_key,
    )  # fmt: skip
