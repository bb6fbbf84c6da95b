"""Loads benchmarks from JSONL: one object a line with `id, question, choices, answer` and extras.

`choices` is a list of option texts or null; `answer` is a string: for multiple choice the option's
letter (from A by place) or its text. A name is looked up in the folder that the environment
variable GRADEJAX_DATA names, as `<name>.jsonl` or `<name>.<split>.jsonl`. No benchmark ships with
gradejax.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Task
from gradejax.tasks.choices import LETTERS
from gradejax.tasks.numbers import canonical_integer, is_plain_number, parse
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.reading import normalise
from gradejax.tasks.splits import check_disjoint, split_by_hash

__all__ = ["FAMILIES", "Benchmark", "check_disjoint", "gold_index", "infer_kind", "load_jsonl"]
__all__ += ["load_task", "lone_surrogate", "resolve_path", "split_by_hash", "twin_golds"]

DATA_FOLDER = "GRADEJAX_DATA"
KEYS = ("id", "question", "choices", "answer")
_SURROGATE = re.compile("[\ud800-\udfff]")
# family -> (answer kind, format slot); any other family gets what its items show
FAMILIES = {
    "aime": ("integer", "aime"),
    "gpqa": ("choice", "gpqa"),
    "gsm8k": ("number", "gsm8k"),
    "mmlu_pro": ("choice", "mmlu_pro"),
}


class Benchmark(NamedTuple):
    """A loaded benchmark: how to grade it, and its items in file order."""

    task: Task
    examples: tuple[Example, ...]


def load_task(
    source: str | os.PathLike, *, split: str | None = None, kind: str | None = None
) -> Benchmark:
    """Loads a benchmark by name (in the GRADEJAX_DATA folder) or by the path of a .jsonl file.

    Args:
      source: e.g. "gsm8k", "gsm8k.test" or "some/folder/mine.jsonl".
      split: e.g. "test"; names only.
      kind: one of `KINDS`; None takes the family's own, else `infer_kind`.

    Raises ValueError when the file is missing or broken, or its golds do not fit the kind.
    """
    path = resolve_path(source, split)
    family = _family(path.stem)
    examples = load_jsonl(path, family=family)
    own_kind, slot = FAMILIES.get(family, (None, None))
    kind = kind or own_kind or infer_kind(examples, path)
    _check_kind(kind, examples, path)
    slot = slot or ("choice" if kind == "choice" else "open")
    return Benchmark(make_task(family, kind, FORMATS[slot]), examples)


def load_jsonl(path: str | os.PathLike, *, family: str = "") -> tuple[Example, ...]:
    """Reads the items of one file; extras of a line go to `Example.meta`.

    An item's family is its own `family`, `subject` or `category`, else the one given.

    Every fault is a ValueError with file and line: a torn line, a missing key, a wrong type, a
    duplicate id, an answer that is not among the choices; also a file without items.
    """
    path = Path(path)
    rows: list[tuple[int, dict[str, Any]]] = []
    line_of: dict[str, int] = {}
    for number, line in _lines(path):
        row = _parse_line(line, f"{path}:{number}")
        first = line_of.setdefault(row["id"], number)
        if first != number:
            raise ValueError(f"{path}:{number}: duplicate id {row['id']!r}, first at line {first}")
        rows.append((number, row))
    if not rows:
        raise ValueError(f"{path}: expected at least one item, got an empty file")
    readings = {n: _readings(row) for n, row in rows if row["choices"] is not None}
    letters = any(r == (r[0], None) for r in readings.values())
    texts = any(r == (None, r[1]) for r in readings.values())
    examples = []
    for number, row in rows:
        choices = row["choices"]
        answer = row["answer"]
        if choices is not None:
            index = _choose(readings[number], letters, texts, row, f"{path}:{number}")
            choices, answer = tuple(choices), LETTERS[index]
        meta = {key: value for key, value in row.items() if key not in KEYS}
        own = _own_family(row) or family
        examples.append(
            Example(row["id"], row["question"], choices, answer, own, path.name, meta=meta)
        )
    return tuple(examples)


def infer_kind(examples: Sequence[Example], where: str | os.PathLike = "the items") -> str:
    """The answer kind that items show: choice, else number when every gold is one, else text.

    Raises:
      ValueError: some have choices and some have none; names `where` they are from.
    """
    closed = [example.id for example in examples if example.choices is not None]
    opened = [example.id for example in examples if example.choices is None]
    if closed and opened:
        raise ValueError(
            f"{where}: expected all items with choices or all without, got {len(closed)} with "
            f"(such as id {closed[0]!r}) and {len(opened)} without (such as id {opened[0]!r}); "
            "split them into two files and run each by itself, or leave one kind out"
        )
    if closed:
        return "choice"
    return "number" if all(is_plain_number(example.answer) for example in examples) else "text"


def lone_surrogate(value: Any) -> str | None:
    """The name of half a character in a text, or in any text of a JSON value; None without one.

    JSON's escapes can write it ("\\ud800"), UTF-8 cannot, and no tokenizer takes it.
    """
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        return None if found is None else f"the lone surrogate U+{ord(found[0]):04X}"
    if isinstance(value, dict):
        value = (*value, *value.values())
    if isinstance(value, (list, tuple)):
        return next((odd for v in value if (odd := lone_surrogate(v)) is not None), None)
    return None


def twin_golds(examples: Sequence[Example]) -> list[str]:
    """Ids of the items whose right option stands among the options twice, under two letters.

    Such items cannot be graded: a reply that names the other letter says the same and is wrong.
    Public benchmarks hold some, so they load; wrong options that are equal do no harm.
    """
    out = []
    for example in examples:
        if example.choices is not None:
            texts = [normalise(choice) for choice in example.choices]
            if texts.count(texts[LETTERS.index(example.answer)]) > 1:
                out.append(example.id)
    return out


def gold_index(labels: Sequence[str], answer_key: str) -> int:
    """The place of `answer_key` in an item's own labels (ARC has 1-4 beside A-E).

    Raises ValueError when it is not among them or is among them twice.
    """
    if list(labels).count(answer_key) != 1:
        raise ValueError(f"answer {answer_key!r} is not among the labels; choose from {labels}")
    return list(labels).index(answer_key)


def resolve_path(source: str | os.PathLike, split: str | None = None) -> Path:
    """The file that a name (with an optional split) or a path stands for."""
    if isinstance(source, os.PathLike) or str(source).endswith(".jsonl"):
        if split is not None:
            raise ValueError(f"a path names one file already, got split={split!r} beside {source}")
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"no such file: {path}")
        return path
    name = source if split is None else f"{source}.{split}"
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        raise ValueError(
            f"benchmark {name!r} is looked up in the folder that {DATA_FOLDER} names, which is not "
            "set; set it or give the path of a .jsonl file"
        )
    path = Path(folder) / f"{name}.jsonl"
    if not path.is_file():
        there = sorted(p.name.removesuffix(".jsonl") for p in Path(folder).glob("*.jsonl"))
        choose = f"choose from {there}" if there else "there is no .jsonl file in it"
        raise ValueError(f"no benchmark {name!r} in {folder}; {choose}")
    return path


def _lines(path: Path):
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text, got {error}") from error


def read_object(line: str, where: str) -> tuple[dict[str, Any], str | None]:
    """(the JSON object of a line, the first half character in it or None).

    Raises:
      ValueError: no JSON, a repeated key, something nested too deeply, or no object; names where.
    """
    try:
        row = json.loads(line, object_pairs_hook=_no_repeated_keys)
        odd = lone_surrogate(row)
    except ValueError as error:  # JSONDecodeError and repeated keys
        raise ValueError(f"{where}: expected one JSON object a line, got {error}") from error
    except RecursionError:
        raise ValueError(
            f"{where}: expected one JSON object a line, got one nested too deeply to read"
        ) from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row, odd


def _parse_line(line: str, where: str) -> dict[str, Any]:
    row, odd = read_object(line, where)
    missing = [key for key in KEYS if key not in row]
    if missing:
        raise ValueError(f"{where}: missing {missing}; expected the keys {list(KEYS)}")
    if isinstance(row["id"], int) and not isinstance(row["id"], bool):
        row["id"] = str(row["id"])
    for key in ("id", "question", "answer"):
        if not isinstance(row[key], str) or not row[key].strip():
            raise ValueError(
                f"{where}: expected {key!r} to be a non-empty string, got {row[key]!r}"
            )
    if odd is not None:
        key = next(key for key, value in row.items() if lone_surrogate([key, value]))
        raise ValueError(f"{where}: {key!a} holds {odd}; expected whole characters")
    choices = row["choices"]
    if choices is not None and not (
        isinstance(choices, list)
        and 2 <= len(choices) <= len(LETTERS)
        and all(isinstance(choice, str) for choice in choices)
    ):
        raise ValueError(
            f"{where}: expected 'choices' to be null or a list of 2 to {len(LETTERS)} strings, "
            f"got {choices!r}"
        )
    return row


def _own_family(row: dict[str, Any]) -> str | None:
    names = (row.get(key) for key in ("family", "subject", "category"))
    return next((n.strip() for n in names if isinstance(n, str) and n.strip()), None)


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise ValueError(f"repeated key(s) {repeated}")
    return dict(pairs)


def _readings(row: dict[str, Any]) -> tuple[int | None, int | None]:
    """The gold's place when the answer is read as a letter, and as an option's text."""
    answer, choices = row["answer"].strip(), row["choices"]
    letters = LETTERS[: len(choices)]
    as_letter = letters.index(answer) if len(answer) == 1 and answer in letters else None
    places = [i for i, choice in enumerate(choices) if choice.strip() == answer]
    return as_letter, places[0] if len(places) == 1 else None


def _choose(readings, letters: bool, texts: bool, row: dict[str, Any], where: str) -> int:
    """Settles an answer such as "C" for the options ["C", "N", "O"]: letter C or the text "C"?

    The other lines of the file say how it writes its answers; where they say nothing or both, it
    is an error, since a guess would make the item ungradable without a sign.
    """
    as_letter, as_text = readings
    if as_letter is None and as_text is None:
        raise ValueError(
            f"{where}: answer {row['answer']!r} is not among the choices; expected a letter of "
            f"{LETTERS[: len(row['choices'])]} or the text of exactly one option"
        )
    if None in readings or as_letter == as_text:
        return as_text if as_letter is None else as_letter
    if letters == texts:
        raise ValueError(
            f"{where}: answer {row['answer']!r} is both a letter and the text of another option"
        )
    return as_letter if letters else as_text


def _family(stem: str) -> str:
    for family in sorted(FAMILIES, key=len, reverse=True):
        if re.match(rf"{family}(?![a-z])", stem):
            return family
    return stem.split(".")[0]


def _check_kind(kind: str, examples: Sequence[Example], path: Path) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown answer kind {kind!r}; choose from {sorted(KINDS)}")
    fits = {
        "choice": lambda e: e.choices is not None,
        "number": lambda e: e.choices is None and parse(e.answer) is not None,
        "integer": lambda e: e.choices is None and canonical_integer(e.answer, e).isdigit(),
        "math": lambda e: e.choices is None,
        "text": lambda e: e.choices is None,
    }[kind]
    for example in examples:
        if not fits(example):
            raise ValueError(
                f"{path}: id {example.id!r} does not fit answer kind {kind!r} (choices "
                f"{'given' if example.choices else 'absent'}); choose another of {sorted(KINDS)}"
            )
