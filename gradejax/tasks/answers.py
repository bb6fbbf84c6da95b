"""The kinds of answers: how each is read from a reply and when two are the same.

| kind    | the answer is             | equal when                                             |
|---------|---------------------------|--------------------------------------------------------|
| choice  | an option's letter        | the same option                                        |
| number  | any number                | the same exact value: "1,050.50" = "1050.5", 1/2 = 0.5 |
| integer | an integer 0..999 (AIME)  | the same integer: "033" = "33"                         |
| math    | a formula, set, tuple ... | math-verify calls them equal: (x+1)^2 = x^2+2x+1       |
| text    | short text                | the same letters, case and blanks aside                |

Grading is equality of canonical answers, so a vote over canonicals and the verdict cannot disagree.
Characters that nobody sees (zero widths, direction marks) are taken off replies and golds of every
kind, and accents are composed, before anything is read.
Formulas have no canonical form that is always found: there `Task.same` joins what the canonicals
leave apart, in votes as in verdicts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradejax.tasks import maths
from gradejax.tasks.base import Example, Task, after_thinking
from gradejax.tasks.choices import canonical_choice, extract_choice, extract_choice_strictly
from gradejax.tasks.math_replies import canonical_math, extract_math, extract_math_strictly
from gradejax.tasks.number_replies import extract_number, extract_number_strictly
from gradejax.tasks.numbers import canonical_integer, canonical_number
from gradejax.tasks.reading import (
    MAX_STATEMENT,
    asked_answer,
    boxes,
    cues,
    has_cue,
    last_boxes,
    last_standing,
    normalise,
    readable,
    tagged,
    undecorated,
)


@dataclass(frozen=True)
class AnswerKind:
    """How answers of one kind are read and compared (see `Task` for the functions)."""

    extract: Callable[[str, Example], str | None]
    strict: Callable[[str, Example], str | None]
    canonical: Callable[[str, Example], str]
    same: Callable[[str, str], bool] | None = None
    compared: Callable[[str, str], bool] | None = None


def extract_text(text: str, example: Example) -> str | None:
    r"""Reads a short text: last `ANSWER:` line, else last cue or \boxed{}, else a one-line reply.

    A reply of several lines that states nothing is no answer.
    """
    del example
    visible = after_thinking(text)
    if visible is None:
        return None
    asked = _marked_text(visible)
    if asked is not None:
        return asked
    spoken = [s for s in sorted(cues(visible)) if _bare(s.text)]
    kinds = (tagged(visible), spoken, last_boxes(visible))
    stated = [s for kind in kinds for s in last_standing(kind, visible)]
    if stated:
        last = max(stated)
        boxed = boxes(last.text)
        # after "the answer is" the sentence ends the answer; after a colon the line does
        sentence = last.text if last.colon else re.split(r"[.!?]\s", last.text, maxsplit=1)[0]
        return _bare(boxed[-1].text if boxed else sentence)
    lines = [line for line in visible.splitlines() if line.strip()]
    short = len(lines) == 1 and len(lines[0]) <= MAX_STATEMENT
    return _bare(lines[0]) if short and not has_cue(lines[0]) else None


def extract_text_strictly(text: str, example: Example) -> str | None:
    """Reads a short text from an `ANSWER:` line, else an answer tag or a box."""
    del example
    visible = after_thinking(text)
    if visible is None:
        return None
    asked = _marked_text(visible)
    if asked is not None:
        return asked
    marks = [*last_standing(tagged(visible), visible), *last_boxes(visible)[-1:]]
    return _bare(max(marks).text) if marks else None


def _marked_text(visible: str) -> str | None:
    asked = asked_answer(visible)
    if asked is None:
        return None
    boxed = boxes(asked)
    return _bare(boxed[-1].text if boxed else asked)


def canonical_text(answer: str, example: Example) -> str:
    """Lower case, blanks to one and none beside signs, quotes and a final .?! off."""
    del example
    return normalise(undecorated(answer))


def _kind(extract, strict, canonical, same=None, compared=None) -> AnswerKind:
    """A kind whose replies, answers and golds are all cleared of what nobody sees, here alone."""
    return AnswerKind(
        lambda text, example: extract(readable(text), example),
        lambda text, example: strict(readable(text), example),
        lambda answer, example: canonical(readable(answer), example),
        same,
        compared,
    )


KINDS: Mapping[str, AnswerKind] = {
    "choice": _kind(extract_choice, extract_choice_strictly, canonical_choice),
    "integer": _kind(extract_number, extract_number_strictly, canonical_integer),
    "math": _kind(
        extract_math, extract_math_strictly, canonical_math, maths.same, maths.comparable
    ),
    "number": _kind(extract_number, extract_number_strictly, canonical_number),
    "text": _kind(extract_text, extract_text_strictly, canonical_text),
}


def make_task(name: str, kind: str, format_slot: Callable[[Example], str]) -> Task:
    """A task whose answers are of one of `KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"unknown answer kind {kind!r}; choose from {sorted(KINDS)}")
    own = KINDS[kind]

    def grade(answer: str | None, example: Example) -> bool:
        if answer is None:
            return False
        given, gold = own.canonical(answer, example), own.canonical(example.answer, example)
        if kind == "integer" and not given.isdigit():  # outside 0..999 nothing is right
            return False
        return given == gold or (own.same is not None and own.same(gold, given))

    def compared(answer: str, example: Example) -> bool:
        given, gold = own.canonical(answer, example), own.canonical(example.answer, example)
        return own.compared(gold, given)

    return Task(
        name, format_slot, own.extract, own.canonical, grade, own.strict, own.same,
        None if own.compared is None else compared, needs_choices=kind == "choice",
    )  # fmt: skip


def _bare(text: str) -> str | None:
    text = undecorated(text)
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    text = undecorated(text.rstrip(".") or text)
    return text or None
