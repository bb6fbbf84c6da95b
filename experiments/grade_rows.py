"""Lines in and lines out of `experiments.grade`: every value is of its kind, every text is written.

A value of another kind would be graded all the same (a dict's keys as options, true as option B),
or break the run after half of the verdicts. So all lines are checked before the first verdict, and
what is odd is a ValueError with file and line. A whole number may be written as 2.0.
"""

import json
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gradejax.tasks.choices import LETTERS
from gradejax.tasks.data import read_object

# What is read of a line and of a benchmark's item, by kind; a tool's other keys are its own.
_LINE = {"completion": "text", "finish_reason": "text", "id": "id", "gold": "value",
         "choices": "texts"}  # fmt: skip
_ITEM = {"id": "id", "question": "text", "answer": "value", "choices": "texts", "labels": "list",
         "orig_labels": "list", "correct_letter": "text", "error_type": "text", "test": "text",
         "entry_point": "text"}  # fmt: skip
# Some readers of lines end one at these too.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def read_rows(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The lines of an outputs file, checked; every fault is a ValueError with file and line."""
    path, empty = pathlib.Path(path), True
    with open(path, encoding="utf-8-sig", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            row = _parsed(line, where, _LINE)
            absent = [key for key in ("benchmark", "completion") if key not in row]
            if absent:
                raise ValueError(
                    f"{where}: missing {absent}; expected the keys benchmark, completion, gold "
                    "and, to find the item, id"
                )
            if not isinstance(row["benchmark"], str) or not row["benchmark"].strip():
                raise ValueError(f"{where}: expected 'benchmark' to be a name")
            empty = False
            # a line's number names it, and no item
            yield {"id": number} | row | {"where": where, "asked": row.get("id")}
    if empty:
        raise ValueError(f"{path}: expected a JSON object a line, got an empty file")


def read_item(line: str, where: str) -> dict[str, Any]:
    """The item of a line of a benchmark's file, checked as a line of the outputs is."""
    return _parsed(line, where, _ITEM)


def _parsed(line: str, where: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    row, _ = read_object(line, where)  # half characters are graded like any other
    for key, kind in kinds.items():
        value, expected = row.get(key), f"{where}: expected {key!r} to be"
        if value is None:
            continue
        if kind in ("id", "value"):
            row[key] = _value(value, expected, whole=kind == "id")
        elif kind != "text":
            _check_list(value, expected, texts=kind == "texts")
        elif not isinstance(value, str):
            raise ValueError(f"{expected} a string or null, {_got(value)}")
    return row


def _value(value: Any, expected: str, *, whole: bool) -> str | int | float:
    """A string or number as it stands, a whole number as int."""
    if isinstance(value, str):
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and math.isfinite(value):
        if value == int(value):
            return int(value)
        if not whole:
            return value
    raise ValueError(f"{expected} a string or a {'whole ' if whole else ''}number, {_got(value)}")


def _check_list(value: Any, expected: str, *, texts: bool) -> None:
    kinds = str if texts else (str, int)
    fits = isinstance(value, list) and all(
        isinstance(v, kinds) and not isinstance(v, bool) for v in value
    )
    if not fits or not (2 <= len(value) <= len(LETTERS) or not value):
        raise ValueError(f"{expected} null or a list of 2 to {len(LETTERS)} strings, {_got(value)}")


def _got(value: Any) -> str:
    text = repr(value)
    return f"got {type(value).__name__} {text if len(text) <= 60 else text[:60] + ' ...'}"


def print_line(line: dict[str, Any]) -> None:
    """Prints a JSON line; what stdout's encoding cannot write is written as JSON's escapes."""
    text = json.dumps(line, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        escaped = any(end in text for end in _LINE_ENDS)
    except UnicodeEncodeError:  # an ASCII terminal, or half a character
        escaped = True
    print(json.dumps(line) if escaped else text)
