"""The kinds of answers: how each is read from a reply and when two are the same.

| kind    | the answer is             | equal when                                             |
|---------|---------------------------|--------------------------------------------------------|
| choice  | an option's letter        | the same option                                        |
| number  | any number                | the same exact value: "1,050.50" = "1050.5", 1/2 = 0.5 |
| integer | an integer 0..999 (AIME)  | the same integer: "033" = "33"                         |
| text    | short text                | the same letters, case and blanks aside                |

Grading is equality of canonical answers, so a vote over canonicals and the verdict cannot disagree.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradejax.tasks.base import Example, Task, after_thinking
from gradejax.tasks.choices import canonical_choice, extract_choice
from gradejax.tasks.numbers import canonical_integer, canonical_number, extract_number
from gradejax.tasks.reading import asked_answer, boxes, cues, has_cue, normalise, undecorated


@dataclass(frozen=True)
class AnswerKind:
    """How answers of one kind are read and compared (see `Task` for the two functions)."""

    extract: Callable[[str, Example], str | None]
    canonical: Callable[[str, Example], str]


def extract_text(text: str, example: Example) -> str | None:
    r"""Reads a short text: last `ANSWER:` line, else last cue or \boxed{}, else a one-line reply.

    A reply of several lines that states nothing is no answer.
    """
    del example
    visible = after_thinking(text)
    if visible is None:
        return None
    asked = asked_answer(visible)
    if asked is not None:
        boxed = boxes(asked)
        return _bare(boxed[-1].text if boxed else asked)
    stated = [s for s in (*boxes(visible), *cues(visible)) if _bare(s.text)]
    if stated:
        last = max(stated)
        boxed = boxes(last.text)
        # after "the answer is" the sentence ends the answer; after a colon the line does
        sentence = last.text if last.colon else re.split(r"[.!?]\s", last.text, maxsplit=1)[0]
        return _bare(boxed[-1].text if boxed else sentence)
    lines = [line for line in visible.splitlines() if line.strip()]
    return _bare(lines[0]) if len(lines) == 1 and not has_cue(lines[0]) else None


def canonical_text(answer: str, example: Example) -> str:
    """Lower case, blanks to one and none beside signs, quotes and a final .?! off."""
    del example
    return normalise(undecorated(answer))


KINDS: Mapping[str, AnswerKind] = {
    "choice": AnswerKind(extract_choice, canonical_choice),
    "number": AnswerKind(extract_number, canonical_number),
    "integer": AnswerKind(extract_number, canonical_integer),
    "text": AnswerKind(extract_text, canonical_text),
}


def make_task(name: str, kind: str, format_slot: Callable[[Example], str]) -> Task:
    """A task whose answers are of one of `KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"unknown answer kind {kind!r}; choose from {sorted(KINDS)}")
    extract, canonical = KINDS[kind].extract, KINDS[kind].canonical

    def grade(answer: str | None, example: Example) -> bool:
        return answer is not None and canonical(answer, example) == canonical(
            example.answer, example
        )

    return Task(name, format_slot, extract, canonical, grade)


def _bare(text: str) -> str | None:
    text = undecorated(text)
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    text = undecorated(text.rstrip(".") or text)
    return text or None
