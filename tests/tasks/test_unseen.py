"""Characters that nobody sees change no reading, of any kind."""

import sys
import unicodedata

import pytest

from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.reading import readable

COLOURS = ("red", "green", "blue", "yellow")


def judge(kind, reply, gold):
    choices = COLOURS if kind == "choice" else None
    task = make_task("t", kind, FORMATS["choice" if choices else "open"])
    return task.judge(reply, "stop", Example("o", "?", choices, gold))


@pytest.mark.parametrize(
    "kind, reply, gold",
    [
        ("choice", "ANSWER:\u200bB", "B"),
        ("choice", "\u200bB", "B"),
        ("choice", "\u200fB\u200f", "B"),
        ("choice", "ANSWER: \u202eB\u202c", "B"),
        ("choice", "ANSWER: gr\u00adeen", "B"),
        ("text", "ANSWER: \u200bParis", "Paris"),
        ("text", "ANSWER: Paris", "\ufeffParis"),
        ("text", "ANSWER: Pa\u0301ris", "P\u00e1ris"),
        ("text", "ANSWER: P\u00e1ris", "Pa\u0301ris"),
        ("number", "\u200eANSWER: 42", "42"),
        ("number", "ANSWER: 4\u200b2", "42"),
        ("number", "\\bo\u200bxed{42}", "42"),
        ("integer", "ANSWER: 3\u200b3", "33"),
        ("math", "ANSWER: \u2066x+1\u2069", "x+1"),
    ],
)
def test_unseen_characters_change_no_reading(kind, reply, gold):
    judged = judge(kind, reply, gold)
    assert judged.outcome is Outcome.RIGHT
    assert judged.strict is Outcome.RIGHT or "ANSWER" not in reply


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_number_is_not_cut_where_an_unseen_character_stands(kind):
    assert judge(kind, "ANSWER: 3\u200b3", "A" if kind == "choice" else "3").outcome not in (
        Outcome.RIGHT,
    )


def test_every_format_character_of_unicode_is_one():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) == "Cf":
            assert readable(f"4{chr(code)}2") == "42", hex(code)
