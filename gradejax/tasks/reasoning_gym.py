"""Three families of Reasoning Gym questions: arithmetic, logic and algorithmic.

The generators and their configs are fixed here and nowhere else, so that experts, GRADE and the
held-out set always speak of the same distribution. Grading is reasoning-gym's own `score_answer`,
exactly 1.0.

Left out on purpose (measured on 1,000 items): generators whose commonest answer is 10% or more of
all (gcd, number_sequence, family_relationships, syllogism, circuit_logic, letter_counting),
and `basic_arithmetic` without parentheses, whose gold ignores the precedence of `*`.
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

from gradejax.tasks.base import Example, Task

FAMILIES = ("arithmetic", "logic", "algorithmic")
DIFFICULTIES = ("easy", "hard")
FORMAT_SLOT = "Respond with ANSWER: <value>."


@dataclass(frozen=True)
class Source:
    """One generator in one configuration.

    Attributes:
      name: unique, "<generator>-<difficulty>"; the `source` of its examples.
      family: one of FAMILIES.
      difficulty: one of DIFFICULTIES.
      generator: reasoning-gym's dataset name.
      config: keyword arguments of that dataset, read-only, without seed and size.
    """

    name: str
    family: str
    difficulty: str
    generator: str
    config: Mapping[str, Any]


def _source(family: str, difficulty: str, generator: str, **config: Any) -> Source:
    name = f"{generator}-{difficulty}"
    return Source(name, family, difficulty, generator, MappingProxyType(config))


def _digits(low: int, high: int) -> dict[str, int]:
    return {"min_digits": low, "max_digits": high}


def _terms(low: int, high: int) -> dict[str, int]:
    return {"min_terms": low, "max_terms": high}


_OPERATORS = ("+", "-", "*")
# manipulate_matrix draws by softmax of its weights, so 0 does not switch an operation off; these
# four shrink or blank the matrix, which would make short answers common
_RESHAPING = ("w_crop", "w_remove_every_nth_row", "w_remove_every_nth_col", "w_zero_divisible")
_NO_RESHAPING = dict.fromkeys(_RESHAPING, -30.0)
SOURCES: tuple[Source, ...] = (
    _source("arithmetic", "easy", "chain_sum", **_terms(2, 2), **_digits(2, 2)),
    _source("arithmetic", "hard", "chain_sum", **_terms(3, 4), **_digits(2, 2)),
    _source("arithmetic", "easy", "leg_counting", min_animals=2, max_animals=2, max_instances=9),
    _source("arithmetic", "hard", "leg_counting", min_animals=3, max_animals=3, max_instances=15),
    _source("arithmetic", "easy", "simple_equations", **_terms(2, 2), max_value=15),
    _source("arithmetic", "hard", "simple_equations", **_terms(3, 3), max_value=30),
    _source(
        "arithmetic",
        "easy",
        "basic_arithmetic",
        **_terms(3, 3),
        **_digits(1, 1),
        operators=_OPERATORS,
    ),
    _source(
        "arithmetic",
        "hard",
        "basic_arithmetic",
        **_terms(4, 5),
        **_digits(1, 1),
        operators=_OPERATORS,
    ),
    _source("arithmetic", "hard", "products", **_terms(2, 2), **_digits(2, 2)),
    _source(
        "logic",
        "easy",
        "aiw",
        # siblings, friends, colleagues: the last does not fit the tiny experts' prompts
        task_type_weights=(0.5, 0.5, 0.0),
        max_entities=30,
    ),
    _source("logic", "hard", "knights_knaves", n_people=2),
    _source("logic", "easy", "color_cube_rotation", min_rotations=1, max_rotations=1),
    _source("logic", "hard", "color_cube_rotation", min_rotations=2, max_rotations=3),
    _source("logic", "easy", "mini_sudoku", min_empty=3, max_empty=5),
    _source("logic", "hard", "mini_sudoku", min_empty=6, max_empty=8),
    _source(
        "algorithmic",
        "easy",
        "number_filtering",
        min_numbers=3,
        max_numbers=4,
        max_decimals=0,
        min_value=10,
        max_value=99,
    ),
    _source(
        "algorithmic",
        "hard",
        "number_filtering",
        min_numbers=5,
        max_numbers=7,
        max_decimals=0,
        min_value=-99,
        max_value=99,
    ),
    _source("algorithmic", "easy", "word_sequence_reversal", min_words=3, max_words=4),
    _source("algorithmic", "hard", "word_sequence_reversal", min_words=5, max_words=7),
    _source("algorithmic", "easy", "rotate_matrix", min_n=3, max_n=3, max_rotations=3),
    _source("algorithmic", "hard", "rotate_matrix", min_n=4, max_n=4, max_rotations=7),
    _source(
        "algorithmic",
        "easy",
        "manipulate_matrix",
        min_rows=2,
        max_rows=3,
        min_cols=2,
        max_cols=3,
        min_transforms=1,
        max_transforms=1,
        **_NO_RESHAPING,
    ),
    _source(
        "algorithmic",
        "hard",
        "manipulate_matrix",
        min_rows=3,
        max_rows=3,
        min_cols=3,
        max_cols=3,
        min_transforms=2,
        max_transforms=3,
        **_NO_RESHAPING,
    ),
)

# generators whose answers are matrices, one row a line
MULTILINE = frozenset({"mini_sudoku", "rotate_matrix", "manipulate_matrix"})
# generators whose scorer compares decimals ("+01,000.0" equals "1000"); the rest compare text
_DECIMAL = frozenset({"chain_sum", "products"})


@functools.cache
def source_named(name: str) -> Source:
    """The Source called `name`; ValueError with the choices when there is none."""
    for source in SOURCES:
        if source.name == name:
            return source
    choices = ", ".join(s.name for s in SOURCES)
    raise ValueError(f"expected a Reasoning Gym source, got {name!r}; choices: {choices}")


def open_dataset(source: Source, seed: int, size: int) -> Any:
    """reasoning-gym's dataset of `source`: item i depends on seed + i only."""
    # the import costs seconds (it loads every generator), so only those who draw or grade pay it
    import reasoning_gym

    return reasoning_gym.create_dataset(source.generator, seed=seed, size=size, **source.config)


def to_example(source: Source, entry: Mapping[str, Any], example_id: str) -> Example:
    """Turns one reasoning-gym entry into an Example whose meta (plain JSON) holds the entry.

    Left out of it: the index and the config's ranges, so that an item is the same however drawn.
    """
    kept = {key: entry[key] for key in ("question", "answer")}
    dropped = ("source_index", "difficulty")
    kept["metadata"] = {k: v for k, v in entry["metadata"].items() if k not in dropped}
    plain = json.loads(json.dumps(kept))
    return Example(
        id=example_id,
        question=entry["question"].strip(),
        choices=None,
        answer=entry["answer"],
        family=source.family,
        source=source.name,
        difficulty=source.difficulty,
        meta=MappingProxyType({"entry": plain}),
    )


def is_well_posed(entry: Mapping[str, Any]) -> bool:
    """False for the rare item that has no one answer: simple_equations may cancel to "0 = 0"."""
    meta = entry["metadata"]
    if meta["source_dataset"] != "simple_equations":
        return True
    return meta["variable"] in meta["equation"]


def make_examples(source: Source, seed: int, n: int) -> list[Example]:
    """Draws `n` well-posed questions of `source` from item `seed` of its stream on; may repeat."""
    if n < 1:
        raise ValueError(f"expected n >= 1, got {n}")
    data = open_dataset(source, seed, n)
    entries = ((i, data[i]) for i in itertools.count())
    posed = ((i, entry) for i, entry in entries if is_well_posed(entry))
    return [
        to_example(source, entry, f"{source.name}/{seed + i}")
        for i, entry in itertools.islice(posed, n)
    ]


@functools.cache
def _scorer(name: str) -> Any:
    return open_dataset(source_named(name), 0, 1)


# A marker alone: the answer follows it on its line, or on the lines after it for matrices.
_MARKER = re.compile(r"ANSWER:", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d+")


def _extract(text: str, example: Example) -> str | None:
    """The text after the last "ANSWER:"; for arithmetic, failing that, the last integer."""
    source = source_named(example.source)
    markers = list(_MARKER.finditer(text))
    if not markers:
        numbers = _INTEGER.findall(text) if source.family == "arithmetic" else []
        return numbers[-1] if numbers else None
    lines = [line.strip() for line in text[markers[-1].end() :].strip().split("\n")]
    if source.generator not in MULTILINE:
        return lines[0] or None
    rows = lines[: lines.index("")] if "" in lines else lines
    return "\n".join(rows) or None


def _canonical(answer: str, example: Example) -> str:
    """The representative of the answers that the generator's scorer calls equal; scored itself."""
    generator = source_named(example.source).generator
    text = answer.strip()
    if generator in _DECIMAL:
        return _canonical_decimal(text)
    if generator == "knights_knaves":
        # reasoning-gym's own reading: a set of (name, role), whatever the order and punctuation
        pairs = _scorer(example.source)._normalize_answer(text)
        return ", ".join(f"{name} {role}" for name, role in sorted(pairs)) or text.lower()
    if generator == "color_cube_rotation":
        return text.lower()
    if generator == "manipulate_matrix":
        return "\n".join(" ".join(row.split()) for row in text.split("\n"))
    if generator == "mini_sudoku":
        return "\n".join(row.rstrip() for row in text.split("\n"))
    return text


def _canonical_decimal(text: str) -> str:
    try:
        value = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return text
    # beyond this size plain notation would write out millions of zeros ("1e999999")
    if not value.is_finite() or abs(value.adjusted()) > 40:
        return str(value)
    plain = format(value, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain in ("-0", "") else plain


def _grade(answer: str | None, example: Example) -> bool:
    """True when reasoning-gym scores the answer's canonical form exactly 1.0."""
    if answer is None:
        return False
    canonical = _canonical(answer, example)
    return _scorer(example.source).score_answer(canonical, dict(example.meta["entry"])) == 1.0


ReasoningGymTask = Task(
    name="reasoning_gym",
    format_slot=lambda example: FORMAT_SLOT,
    extract=_extract,
    canonical=_canonical,
    grade=_grade,
)
