"""What a reply takes back, doubts or only supposes is no answer; nor are several values at once."""

import pytest

from gradejax.tasks.answers import KINDS
from gradejax.tasks.base import Example

OPEN = Example("o", "?", None, "5")
COLOURS = Example("c", "?", ("red", "green", "blue", "yellow"), "A")


@pytest.mark.parametrize(
    "reply, letter",
    [
        (r"\boxed{A} is wrong", None),
        (r"I withdraw \boxed{A}", None),
        (r"\boxed{A}. I withdraw \boxed{A}.", None),
        (r"I withdraw \boxed{A}. Now \boxed{A}", "A"),  # stated anew
        (r"\boxed{B}. I withdraw \boxed{A}.", "B"),
        ("Everyone says A is correct, but it is not.", None),
        ("The answer is A, but it is not obvious.", "A"),
        ("The answer is A? I doubt it.", None),
        ("ANSWER: A -> no, B", "B"),
        ("ANSWER: A. Actually, B.", "B"),
        ("ANSWER: A, actually a common choice", "A"),
        ("If the answer is A, then 1 = 2, a contradiction. So it must be B.", "B"),
        ("Suppose that the answer is A. Then 1 = 2.\nThe answer is C.", "C"),
        ("Let us see whether the answer is A.", None),
        ("If I had to guess, the answer is A.", "A"),
    ],
)
def test_letters(reply, letter):
    assert KINDS["choice"].extract(reply, COLOURS) == letter


@pytest.mark.parametrize(
    "reply, value",
    [
        ("ANSWER: not 5", None),
        ("The answer is not 5.", None),
        ("She has 7. The answer is not 5.", None),
        ("The answer is not 5 but 6.", "6"),
        (r"\boxed{6}. Let me recheck: I withdraw \boxed{6}.", None),
        (r"\boxed{6}. I withdraw \boxed{6}. It is \boxed{6} after all.", "6"),
        ("ANSWER: 5\nActually no, the answer is 6.", "6"),
        ("ANSWER: 5\nActually no other value is possible.", "5"),
        ("If the answer is 5, then 2 = 3. So it is 6.", "6"),
        ("ANSWER: 5²", "5²"),
        ("ANSWER: 5 cm²", "5"),
        ("ANSWER: 1.234.567", "1.234.567"),  # two decimal points are no number
        ("ANSWER: 5 hundred", "500"),
        ("ANSWER: ½", "1/2"),
        ("ANSWER: x = 5 or x = 6", "x = 5 or x = 6"),
        ("ANSWER: x=5, y=6", "x=5, y=6"),
        ("ANSWER: m = 3, n = 5, m + n = 8", "8"),
        ("ANSWER: x = 5, so 2x = 10", "10"),
        ("ANSWER: 6*7 = 42, so x = 42", "42"),
        ("ANSWER: 5 = 6", "5 = 6"),
        ("ANSWER: 7 (or 8)", "7 (or 8)"),
        ("ANSWER: 7 (8 before)", "7"),
        ("ANSWER: 5 feet 6 inches", "5 feet 6 inches"),
        ("ANSWER: 5 hours and 30 minutes", "5 hours and 30 minutes"),
        ("ANSWER: 5 hours a day", "5"),
        ("ANSWER: 5 thousand 200", "5 thousand 200"),
        (r"\boxed{½}", "1/2"),
    ],
)
def test_numbers(reply, value):
    assert KINDS["number"].extract(reply, OPEN) == value
