"""From rows, of the hub or of a JSONL file, to the same examples."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.spec import COMMON, BenchmarkSpec, LeftOut, Place, RowError
from gradejax.tasks.choices import LETTERS

_SHOWN = 5  # ids named in one note


def to_examples(
    spec: BenchmarkSpec, rows: Iterable[tuple[Mapping[str, Any], Place, str]]
) -> tuple[tuple[Example, ...], tuple[str, ...]]:
    """Examples of a benchmark, and what is to be said of its rows.

    Args:
      spec: the benchmark.
      rows: (row, its place, where it stands: for errors). A row with all of `COMMON` is in the
        common format, any other in the hub's columns.

    Raises:
      ValueError: a row that does not fit, with where it stands; a repeated id.
    """
    out: list[Example] = []
    left_out: Counter[str] = Counter()
    seen: dict[str, str] = {}
    for row, place, where in rows:
        try:
            common = row if set(COMMON) <= set(row) else spec.from_hub(row, place)
            example = _example(spec, common, place)
        except RowError as error:
            raise ValueError(f"{where}: {error}") from None
        first = seen.setdefault(example.id, where)
        if first != where:
            raise ValueError(f"{where}: duplicate id {example.id!r}, first at {first}")
        try:
            out.append(spec.finish(example))
        except LeftOut as reason:
            left_out[str(reason)] += 1
    notes = []
    if left_out:
        why = ", ".join(f"{n} {reason}" for reason, n in left_out.most_common())
        notes.append(f"{sum(left_out.values())} of {len(seen)} items left out: {why}")
    odd = [e.id for e in out if "contradiction" in e.meta]
    if odd:
        notes.append(f"{len(odd)} item(s) contradict themselves: {', '.join(odd[:_SHOWN])}")
    return tuple(out), tuple(notes)


def read_jsonl(path: str | os.PathLike, subset: str, split: str):
    """(row, place, where) of each line of a file; blank lines do not count."""
    index = 0
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{where}: expected a JSON object a line: {error}") from None
                if not isinstance(row, dict):
                    raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
                yield row, Place(subset, split, index), where
                index += 1
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text, got {error}") from error


def _example(spec: BenchmarkSpec, row: Mapping[str, Any], place: Place) -> Example:
    """One row of the common format as an example; RowError when it is none of this benchmark."""
    item_id, question, choices, answer = (row[key] for key in COMMON)
    if isinstance(item_id, int) and not isinstance(item_id, bool):
        item_id = str(item_id)
    for name, value in (("id", item_id), ("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise RowError(f"expected {name!r} to be a text that is not empty")
    if spec.kind == "choice":
        choices, answer = _options(choices, answer)
    elif choices is not None:
        raise RowError(f"{spec.name} has open answers; expected 'choices' to be null")
    meta = {key: value for key, value in row.items() if key not in COMMON}
    absent = [key for key in spec.needs if key not in meta]
    if absent:
        raise RowError(f"expected {absent} beside {list(COMMON)}; {spec.name} is graded by them")
    return Example(
        item_id, question, choices, answer, spec.name, f"{spec.name}.{place.split}", meta=meta
    )


def _options(choices: Any, answer: str) -> tuple[tuple[str, ...], str]:
    """Options, and the gold as a letter: given as a letter, else as the text of one option."""
    if (
        not isinstance(choices, list)
        or not 2 <= len(choices) <= len(LETTERS)
        or not all(isinstance(choice, str) for choice in choices)
    ):
        raise RowError(f"expected 'choices' to be a list of 2 to {len(LETTERS)} texts")
    letters, answer = LETTERS[: len(choices)], answer.strip()
    if len(answer) == 1 and answer in letters:
        return tuple(choices), answer
    places = [i for i, choice in enumerate(choices) if choice.strip() == answer]
    if len(places) != 1:
        raise RowError(f"expected the answer to be a letter of {letters} or the text of one option")
    return tuple(choices), letters[places[0]]
