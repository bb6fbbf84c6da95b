"""When two formulas are one answer: math-verify, asked in a process of its own.

math-verify limits its time by SIGALRM, which works in a main thread only, and a formula can be
written in ten characters that no computer can evaluate. So comparisons run in worker processes
(`math_pool`) that are ended when their time is over: the verdict is then "cannot compare", which is
not right, and is counted apart from plain wrong ones.

Conventions: units are not compared (golds carry them or not), and letters are unknowns, so that
e^{i\\pi} is not -1.
"""

import functools
import re
from fractions import Fraction

from gradejax.tasks.math_pool import pool
from gradejax.tasks.math_text import MAX_CHARS, MAX_DEPTH, depth, is_number, is_words, to_latex

# CPU seconds for one comparison; wall-clock time is bounded by the pool
LIMIT_S = 2.0
# Towers of powers and factorials that no machine can write out: not worth the limit.
_HOPELESS = re.compile(
    r"\^\{?\d{1,9}\^\{?\d{1,9}\^|\^\{?\d{2,9}\^\{?\d{2,}|\d{5,}\)?\}?\s?!|\^\{?-?\d{6,}"
)
# The base a number is written in. A reply may leave out the gold's, which the question names.
_BASE = re.compile(r"^-?\d+_\{?(?:\\text\{)?(\d+)\}{0,2}$")
# Digits after the point to which a decimal stands for a fraction such as 1/3 (math-verify's).
DECIMALS = 6


def same(gold: str, given: str) -> bool:
    """Are two answers in normal writing (`canonical_math`) equal? False where it cannot be told."""
    return _compare(gold, given)[0]


def comparable(gold: str, given: str) -> bool:
    """Could the two be compared: did both parse, in time?"""
    return _compare(gold, given)[1]


@functools.lru_cache(maxsize=65536)
def _compare(gold: str, given: str) -> tuple[bool, bool]:
    """(equal, comparable). Asks a worker only where the writing does not settle it."""
    if gold == given:
        return True, True
    if is_number(gold) and is_number(given):
        return _same_numbers(gold, given), True
    if is_words(gold) or is_words(given):
        return False, True
    if _is_another_value(gold, given):
        return False, True
    for text in (gold, given):
        if len(text) > MAX_CHARS or depth(text) > MAX_DEPTH:
            return False, False
    if any(map(_HOPELESS.search, (gold, given))):
        return False, False
    return pool().compare(to_latex(gold), to_latex(given), LIMIT_S)


def _is_another_value(gold: str, given: str) -> bool:
    """Does `given` say what math-verify does not see: "5=6", or a base (12_8 is not 12)?"""
    left, _, right = given.partition("=")
    if is_number(left) and is_number(right) and not _same_numbers(left, right):
        return True
    bases = [_BASE.search(text) for text in (gold, given)]
    written = [base and base[1] for base in bases]
    return bool(is_number(gold) and written[1] or all(written) and written[0] != written[1])


def _same_numbers(a: str, b: str) -> bool:
    try:
        a, b = Fraction(a), Fraction(b)
    except ZeroDivisionError:  # "1/0" is written like a number and has no value: it equals none
        return False
    if a == b:
        return True
    # 0.333333 is 1/3 as far as decimals can say; two decimals must be equal
    endless = any(Fraction(round(x, 40)) != x for x in (a, b))
    return endless and round(a, DECIMALS) == round(b, DECIMALS)
