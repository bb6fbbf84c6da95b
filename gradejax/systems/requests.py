"""What a caller may hand to a system as a question, and what is refused with words."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradejax.tasks.base import Example, Task
from gradejax.tasks.choices import LETTERS
from gradejax.tasks.data import lone_surrogate

_EXPECTED = "a non-empty text, an Example, or a dict with 'question' (and 'choices')"


def examples_of(
    questions: Iterable[str | Example | Mapping[str, Any]], task: Task
) -> list[Example]:
    """The questions of one call, with ids that differ.

    Args:
      questions: texts, Examples, or dicts as the lines of a JSONL file are: `question`, where there
        are options `choices`, and whatever else the task needs. A gold answer is not needed.
      task: how replies are read; some read none without options, or without an entry of `meta`.

    Raises:
      ValueError: no list of questions; one that is empty, no valid text, or lacks what the task
        needs, with its place.
    """
    if isinstance(questions, str | Example | Mapping):
        raise ValueError("expected a list of questions; got a single one")
    if not isinstance(questions, Iterable):
        raise ValueError(f"expected a list of questions; got {questions!r}")
    return [_example(i, question, task) for i, question in enumerate(questions)]


def _example(i: int, question: str | Example | Mapping[str, Any], task: Task) -> Example:
    if isinstance(question, Mapping):
        question = _from_dict(i, question)
    text = question.question if isinstance(question, Example) else question
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question {i} must be {_EXPECTED}; got {question!r}")
    choices = question.choices or () if isinstance(question, Example) else ()
    for part in (text, *choices):
        if (odd := lone_surrogate(part)) is not None:
            raise ValueError(f"question {i} holds {odd}, which no text can hold: {part[:80]!a}")
    if not isinstance(question, Example):
        question = Example(id="", question=text, choices=None, answer="")
    _check_task(i, question, task)
    # Ids of a call must differ; the question's own may repeat.
    return dataclasses.replace(question, id=f"{i}:{question.id}" if question.id else f"{i}")


def _from_dict(i: int, row: Mapping[str, Any]) -> Example:
    if "question" not in row:
        raise ValueError(f"question {i} must be {_EXPECTED}; got a dict with {sorted(row)}")
    choices = row.get("choices")
    if choices is not None:
        ok = isinstance(choices, Sequence) and not isinstance(choices, str)
        if not (ok and 2 <= len(choices) <= len(LETTERS) and all(map(_is_text, choices))):
            raise ValueError(
                f"question {i}: 'choices' must be a list of 2 to {len(LETTERS)} texts, or None; "
                f"got {choices!r}"
            )
    own = ("id", "question", "choices", "answer", "family", "source", "difficulty")
    return Example(
        id=str(row.get("id", "")), question=row["question"],
        choices=None if choices is None else tuple(choices), answer=str(row.get("answer", "")),
        family=str(row.get("family", "")), source=str(row.get("source", "")),
        meta={key: value for key, value in row.items() if key not in own},
    )  # fmt: skip


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _check_task(i: int, example: Example, task: Task) -> None:
    if task.needs_choices and not example.choices:
        raise ValueError(
            f"question {i} has no options; this system (task {task.name!r}) chooses among options. "
            "Pass gradejax.Example(id='1', question='...', choices=('...', '...'), answer='') or "
            "{'question': '...', 'choices': ['...', '...']}"
        )
    absent = [key for key in task.needs_meta if key not in example.meta]
    if absent:
        raise ValueError(
            f"question {i} has no {absent}; the task {task.name!r} needs them. Pass "
            "{'question': '...', " + ", ".join(f"{key!r}: '...'" for key in task.needs_meta)
            + "}, or an Example with them in meta"
        )  # fmt: skip
