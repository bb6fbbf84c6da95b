r"""Where a reply states a formula: an ANSWER: line, boxes, cue words, its last mathematics."""

import functools
import itertools
import re

from gradejax.tasks.base import Example, after_thinking
from gradejax.tasks.math_text import plain_formula
from gradejax.tasks.numbers import last_number, leads_with_number
from gradejax.tasks.reading import (
    MAX_JOINED,
    Stated,
    asked_answer,
    boxes,
    cues,
    first_sentence,
    is_withdrawn,
    last_boxes,
    last_standing,
    tagged,
    undecorated,
)

# $...$, $$...$$, \(...\), \[...\]; bounded, since an unmatched $ must not search the whole reply
_SPAN = re.compile(
    r"\$\$([^$]{1,600})\$\$|(?<!\\)\$([^$\n]{1,400}?)(?<!\\)\$"
    r"|\\\(([^\n]{1,400}?)\\\)|\\\[((?:[^\\]|\\(?!\])){1,600})\\\]"
)
_JOINED = re.compile(r"\s{0,3}(?:,|and|or|,\s?and|,\s?or)\s{0,3}")
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!sqrt|infinity|arcsin|arccos|arctan)[A-Za-z]{4,}")
_NEAR_THE_END = 120


def extract_math(text: str, example: Example) -> str | None:
    r"""Reads a formula from a reply, flexibly; None when it gives none.

    The last `ANSWER:` line decides; else the last standing box (several joined ones are one list)
    or answer tag; else the last cue; else the last `$...$` near the end; else the last number. A
    cue after a box decides nothing: "we check our answer: $17 \cdot 44 = ...$".
    """
    del example
    return _read(text)[0]


def extract_math_strictly(text: str, example: Example) -> str | None:
    """Reads a formula from an `ANSWER:` line, else an answer tag or a box."""
    del example
    return _read(text)[1]


def canonical_math(answer: str, example: Example) -> str:
    """The answer's normal writing; equal formulas may differ in it (see `maths.same`)."""
    del example
    return plain_formula(answer)


@functools.lru_cache(maxsize=4)
def _read(text: str) -> tuple[str | None, str | None]:
    visible = after_thinking(text)
    if visible is None:
        return None, None
    asked = asked_answer(visible)
    if asked is not None:
        return (_content(asked),) * 2
    marks = [(s.start, _content(s.text)) for s in last_standing(tagged(visible), visible)]
    last = last_boxes(visible)
    if last:
        marks.append((last[-1].start, _together([box.text for box in last])))
    marks = [m for m in marks if m[1]]
    strict = max(marks)[1] if marks else None
    stated = strict or next((s for _, s in _spoken(visible)), None)
    if stated:
        return stated, strict
    withdrawn = [s.end for s in boxes(visible)[-MAX_JOINED:] if is_withdrawn(s, visible)]
    return _unmarked(visible[max(withdrawn, default=0) :]), strict


def _together(contents: list[str]) -> str:
    """One formula, or the list of those that differ ("15\\frac{39}{40}" and "639/40" do not)."""
    distinct = {plain_formula(content): content for content in contents}
    return next(iter(distinct.values())) if len(distinct) == 1 else ", ".join(distinct.values())


def _content(stated: str) -> str | None:
    """The formula of a statement: its box, the math it begins with, else all of it."""
    boxed = last_boxes(stated)
    if boxed:
        return _together([box.text for box in boxed]) or None
    spans = list(_SPAN.finditer(stated))
    if spans and not re.search(r"[\d\\]|\w\(", _SPAN.sub("", stated)):
        return ", ".join(dict.fromkeys(map(_inside, spans)))
    sentence = undecorated(stated)
    return sentence.rstrip(".") or None


def _spoken(text: str) -> list[tuple[int, str]]:
    said = ((cue.start, _of_cue(cue, text)) for cue in sorted(cues(text), reverse=True))
    return list(itertools.islice((s for s in said if s[1]), 1))


def _of_cue(cue: Stated, text: str) -> str | None:
    if is_withdrawn(cue, text) or last_boxes(cue.text):
        return None  # a box is read as a box
    span = _SPAN.search(cue.text)
    if span and not _PROSE.search(cue.text[: span.start()]):
        values, end = [_inside(span)], span.end()
        while (joint := _JOINED.match(cue.text, end)) and (
            following := _SPAN.match(cue.text, joint.end())
        ):
            values.append(_inside(following))
            end = following.end()
        return ", ".join(dict.fromkeys(values))
    said = undecorated(first_sentence(cue.text))
    if cue.colon or not _PROSE.search(said):
        return said.rstrip(".") or None
    return last_number(said) if leads_with_number(said) else None


def _unmarked(text: str) -> str | None:
    span = None
    for span in _SPAN.finditer(text, max(0, len(text) - 4000)):  # noqa: B007  the last one
        pass
    if span and len(text) - span.end() <= _NEAR_THE_END:
        tail = last_number(text[span.end() :])
        return tail or _inside(span)
    whole = undecorated(text)
    if whole and len(whole) < 100 and "\n" not in whole and not _PROSE.search(whole):
        return whole.rstrip(".")
    return last_number(text)


def _inside(span: re.Match) -> str:
    return next(group for group in span.groups() if group is not None).strip()
