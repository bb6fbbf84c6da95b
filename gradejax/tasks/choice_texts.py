"""Finds the option that a text repeats."""

import functools
import re
import unicodedata
from fractions import Fraction

from gradejax.tasks.base import Example
from gradejax.tasks.numbers import clean, parse
from gradejax.tasks.reading import normalise, readable, undecorated

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s?\{([^{}]{0,400})\}")
_MATH_MARKS = re.compile(r"\\[()\[\]]|\\?\$|\\left|\\right|\\[,;:! ]")


def letter_of_text(text: str, example: Example) -> str | None:
    """The letter of the one option whose text this is; None for none or for several.

    Case, blanks, quotes, a final stop, LaTeX marks and a leading article aside; an option that is a
    number is also found by its exact value ("$1,200" for "1200").
    """
    wanted = _key(text)
    if not wanted:
        return None
    keys, values = _keys(example.choices)
    hits = [i for i, key in enumerate(keys) if key == wanted]
    value = None if hits else _value(undecorated(text).rstrip("."))
    if value is not None:
        hits = [i for i, v in enumerate(values) if v == value]
    return _LETTERS[hits[0]] if len(hits) == 1 else None


@functools.lru_cache(maxsize=4096)
def _keys(choices: tuple[str, ...]) -> tuple[tuple[str, ...], tuple]:
    """For each option its normal text, and its exact value where it is nothing but a number."""
    return tuple(_key(c) for c in choices), tuple(_value(c) for c in choices)


def _value(text: str) -> Fraction | None:
    """The exact value of a text that is nothing but a number; "(B) -1" is more than that."""
    if len(text) > 40 or not re.fullmatch(r"[-+]?[\d.,/]*\d", clean(text)):
        return None
    return parse(text)


def _key(text: str) -> str:
    if not text.isascii():  # as replies are read
        text = unicodedata.normalize("NFKC", readable(text))
    if "\\" in text or "$" in text:
        text = _MATH_MARKS.sub("", _COMMAND.sub(r"\1", text))
    return re.sub(r"^(?:the|an?) ", "", normalise(undecorated(text)))
