"""Any generator of reasoning-gym, or a composite of several, graded by its own scorer.

    Generated("countdown")
    Generated("composite", {"datasets": [{"name": "gcd", "weight": 2, "config": {}}, ...]})
    generated_of("gcd+countdown"), generated_of("mix.yaml")

Training and held-out items come from disjoint seeds; generators that repeat themselves give the
same text from different seeds all the same, and such copies are dropped and counted. (The three
fixed families that the shipped experts are trained on are `gradejax.tasks.reasoning_gym`.)

Generators with many right answers to a question (`countdown`, `rubiks_cube`, ...): two right
answers have no common form, so where a question's candidates are collected, those that the scorer
found right are one candidate.
"""

import copy
import difflib
import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradejax.tasks.answers import extract_text
from gradejax.tasks.base import Example, Task, after_thinking
from gradejax.tasks.splits import check_disjoint_seeds, without_copies

NAME = "reasoning_gym_any"
FORMAT_SLOT = "Respond with ANSWER: <value>."
COMPOSITE = "composite"
# far beyond any number of items; a composite gives its parts the seeds next to its own
HELDOUT_OFFSET = 1_000_000_000
_MARGIN = 1_000
# their scorers compare grids with tuples of tuples, which JSON turns into lists
_TUPLES = frozenset({"arc_agi", "rearc"})
_MARKER = re.compile(r"\bANSWER[ \t*_]{0,8}:[ \t]*", re.IGNORECASE)
_ECHO = re.compile(r"<value>\.?")


@dataclass(frozen=True)
class Generated:
    """A generator with its settings.

    Attributes:
      generator: reasoning-gym's name of it, or "composite".
      config: its settings without seed and size; a composite's are {"datasets": [...]}.
    """

    generator: str
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        parts = self.config.get("datasets") if self.generator == COMPOSITE else [self.as_part()]
        if not parts:
            raise ValueError("expected a composite to have 'datasets', got none")
        for part in parts:
            _check_part(part)
        names = [part["name"] for part in parts]
        if len(set(names)) != len(names):
            raise ValueError(f"expected the parts of a composite to differ, got {names}")

    def as_part(self) -> dict[str, Any]:
        return {"name": self.generator, "weight": 1.0, "config": dict(self.config)}

    @property
    def label(self) -> str:
        if self.generator != COMPOSITE:
            return self.generator
        return "+".join(part["name"] for part in self.config["datasets"])

    def open(self, seed: int, size: int) -> Any:
        """reasoning-gym's own data set; its items depend on the seed and their number alone."""
        import reasoning_gym

        if self.generator != COMPOSITE:
            return reasoning_gym.create_dataset(
                self.generator, seed=seed, size=size, **self.config
            )
        from reasoning_gym.composite import DatasetSpec

        parts = [
            DatasetSpec(p["name"], float(p.get("weight", 1)), dict(p.get("config") or {}))
            for p in self.config["datasets"]
        ]
        return reasoning_gym.create_dataset(COMPOSITE, seed=seed, size=size, datasets=parts)


def generated_of(text: str) -> Generated:
    """What a config's text means: a name, names joined by "+", or a composite's YAML or JSON file.

    Raises:
      ValueError: an unknown generator (the nearest are named), or a file that is none.
    """
    if text.endswith((".yaml", ".yml", ".json")):
        return Generated(COMPOSITE, _read_composite(Path(text)))
    names = [name.strip() for name in text.split("+")]
    if len(names) == 1:
        return Generated(names[0])
    return Generated(COMPOSITE, {"datasets": [{"name": n, "weight": 1.0} for n in names]})


def draw(generated: Generated, seed: int, n: int) -> tuple[Example, ...]:
    """The items of `seed`, n of them, in order; ids are "<generator>/<seed>.<number>"."""
    if n < 1:
        raise ValueError(f"expected n >= 1, got {n}")
    data = generated.open(seed, n)
    return tuple(_example(data[i], f"{seed}.{i}") for i in range(n))


def train_and_heldout(
    generated: Generated, *, train: int, heldout: int, seed: int = 0
) -> tuple[tuple[Example, ...], tuple[Example, ...], tuple[str, ...]]:
    """(training items, held-out items, notes), from disjoint seeds and disjoint by text.

    A generator with few different questions gives fewer than asked for: the notes say so.
    """
    if not 0 <= seed < HELDOUT_OFFSET // 2 or max(train, heldout) > HELDOUT_OFFSET // 4:
        raise ValueError(
            f"expected 0 <= seed < {HELDOUT_OFFSET // 2} and at most {HELDOUT_OFFSET // 4} items, "
            f"got seed {seed}, {train} and {heldout}"
        )
    starts = {"train": (seed, train), "heldout": (seed + HELDOUT_OFFSET, heldout)}
    check_disjoint_seeds({k: range(s, s + n + _MARGIN) for k, (s, n) in starts.items()})
    drawn = {k: draw(generated, s, n) for k, (s, n) in starts.items()}
    kept, again = without_copies(drawn["heldout"])
    rest, copies = without_copies(drawn["train"], of=kept)
    notes = []
    if again:
        notes.append(f"{len(again)} of {heldout} held-out items repeat another and are left out")
    if copies:
        notes.append(
            f"{len(copies)} of {train} training items repeat another or a held-out one and are "
            "left out"
        )
    return rest, kept, tuple(notes)


def _example(entry: Mapping[str, Any], number: str) -> Example:
    """One item; meta holds its entry as plain JSON. Some have no one gold: their answer is ""."""
    generator = entry["metadata"]["source_dataset"]
    kept = {key: entry[key] for key in ("question", "answer", "metadata")}
    plain = json.loads(json.dumps(kept))
    return Example(
        id=f"{generator}/{number}",
        question=entry["question"].strip(),
        choices=None,
        answer=entry["answer"] or "",
        family=generator,
        source=generator,
        meta=MappingProxyType({"entry": plain}),
    )


@functools.cache
def _scorer(generator: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, seed=0, size=1)


def score(answer: str | None, example: Example) -> float:
    """reasoning-gym's own score in [0, 1]; an answer that its scorer chokes on scores 0."""
    if answer is None:
        return 0.0
    entry = copy.deepcopy(example.meta["entry"])  # some scorers write into it
    if example.source in _TUPLES:
        entry["metadata"] = _tuples(entry["metadata"])
    try:
        return float(_scorer(example.source).score_answer(answer, entry))
    except Exception:  # a scorer parses free text in a hundred ways; none may end a run
        return 0.0


def _extract(text: str, example: Example) -> str | None:
    """What stands after the last "ANSWER:": the line, or the lines where golds have several."""
    visible = after_thinking(text)
    if visible is None:
        return None
    markers = list(_MARKER.finditer(visible))
    if not markers:
        return extract_text(visible, example)
    rest = visible[markers[-1].end() :].strip("\n").rstrip()
    gold = example.answer.strip("\n")
    if gold and "\n" not in gold:
        rest = rest.strip().split("\n")[0].strip()
    elif "\n\n" not in gold:
        rest = rest.strip("\n").split("\n\n")[0]
    return rest if rest.strip() and not _ECHO.fullmatch(rest.strip()) else None


def _grade(answer: str | None, example: Example) -> bool:
    return score(answer, example) == 1.0


AnyReasoningGymTask = Task(
    name=NAME,
    format_slot=lambda example: FORMAT_SLOT,
    extract=_extract,
    canonical=lambda answer, example: answer,
    grade=_grade,
    same=lambda a, b: False,
)


def _check_part(part: Any) -> None:
    from reasoning_gym.factory import DATASETS

    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
        raise ValueError(f"expected a part of a composite to be a mapping with a name, got {part}")
    extra = set(part) - {"name", "weight", "config"}
    if extra:
        raise ValueError(
            f"{part['name']}: unknown {sorted(extra)}; choose from name, weight, config"
        )
    known = sorted(set(DATASETS) - {COMPOSITE})
    if part["name"] not in known:
        near = difflib.get_close_matches(part["name"], known, 3) or known
        raise ValueError(
            f"reasoning-gym has no generator {part['name']!r}; choose from {', '.join(near)}"
            + (f" ({len(known)} in all)" if len(near) < len(known) else "")
        )
    weight = part.get("weight", 1)
    if not isinstance(weight, int | float) or not weight > 0:
        raise ValueError(f"{part['name']}: expected a weight above 0, got {weight!r}")
    config = dict(part.get("config") or {})
    if {"seed", "size"} & set(config):
        raise ValueError(f"{part['name']}: seed and size are set by the split, not by its config")
    try:
        settings = DATASETS[part["name"]][1](**config)
        if hasattr(settings, "validate"):
            settings.validate()
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"generator {part['name']!r} refuses {config}: {error}") from error


def _read_composite(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: expected a composite's YAML or JSON: {error}") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("datasets"), list):
        raise ValueError(f"{os.fspath(path)}: expected a mapping with a list of 'datasets'")
    return {"datasets": data["datasets"]}


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value
