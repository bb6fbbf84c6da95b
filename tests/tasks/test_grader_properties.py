"""What holds for any answer and any reply: a known answer is read back, garbage does no harm."""

import functools
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.prompts import FORMATS

FREE = settings(deadline=None, max_examples=150, derandomize=True)
OPEN = Example("o", "?", None, "72")
OPTIONS = Example("c", "?", tuple(f"thing {name}" for name in "pqrstuvwxy"), "C")

WORKING = (
    "", "First 3 and then 4 make 7.\n", "Let x = 12.\n\n", "<think>Is it 5?</think>",
    "Consider $\\frac{1}{2}$ of 8. ", "We try \\boxed{1}. Wait, that is wrong. ",
)  # fmt: skip
DRESSES = (
    "ANSWER: {}", "**ANSWER: {}**", "ANSWER:\n{}", "FINAL ANSWER: {}", "\\boxed{{{}}}",
    "$\\boxed{{{}}}$", "\\[\\boxed{{{}}}\\]", "\\fbox{{{}}}", "\\boxed{{\\text{{{}}}}}",
    "<answer>{}</answer>", "The answer is {}.", "The final answer is **{}**.", "Answer: {}",
    "So the answer is: {}", "The correct answer is {}", "### Answer\n{}", "La respuesta es {}.",
    "Die Antwort ist {}.", "答案是{}", '{{"answer": "{}"}}', "ANSWER: {}\n\nI checked it twice.",
    "The answer is ${}$.",
)  # fmt: skip


def plain(value):
    return str(value)


def grouped(value):
    return f"{value:,}"


def unicode_minus(value):
    return f"{value:,}".replace("-", "\u2212")


def latex_groups(value):
    return f"{value:,}".replace(",", "{,}")


def thin_groups(value):
    return f"{value:,}".replace(",", "\u202f")


def two_decimals(value):
    return f"{value}.00"


def scientific(value):
    return f"{value}e0"


def power(value):
    return f"{value} \\times 10^{{0}}"


def fraction(value):
    return f"{2 * value}/2"


WRITINGS = (plain, grouped, unicode_minus, latex_groups, thin_groups, two_decimals, scientific,
            power, fraction)  # fmt: skip


@FREE
@given(st.integers(-(10**9), 10**9), st.sampled_from(WRITINGS), st.sampled_from(WORKING))
def test_an_integer_is_read_back_from_every_dress(value, write, working):
    kind = KINDS["number"]
    for dress in DRESSES:
        reply = working + dress.format(write(value))
        answer = kind.extract(reply, OPEN)
        assert answer is not None and kind.canonical(answer, OPEN) == str(value), reply


@FREE
@given(st.decimals(-(10**6), 10**6, places=3), st.sampled_from(DRESSES))
def test_a_decimal_is_read_back_exactly(value, dress):
    kind = KINDS["number"]
    answer = kind.extract(dress.format(value), OPEN)
    assert Fraction(kind.canonical(answer, OPEN)) == Fraction(value)


@FREE
@given(
    st.sampled_from("ABCDEFGHIJ"),
    st.sampled_from(("{}", "({})", "{}.", "**{}**", "option {}", "({}) {text}", "{}: {text}")),
    st.sampled_from(WORKING),
)
def test_a_letter_is_read_back_from_every_dress(letter, writing, working):
    text = OPTIONS.choices[ord(letter) - ord("A")]
    for dress in DRESSES:
        reply = working + dress.format(writing.format(letter, text=text))
        assert KINDS["choice"].extract(reply, OPTIONS) == letter, reply


@functools.cache
def task(kind):
    return make_task("t", kind, FORMATS["choice" if kind == "choice" else "open"])


def judge(kind, text):
    return task(kind).judge(text, "stop", OPTIONS if kind == "choice" else OPEN)


PIECES = ("\\boxed{", "}", "{", "$", "\\(", "ANSWER:", "answer is", "####", "1,234", "-", "/", "^",
          "\n", " ", "A", "B", "(", ")", "or", "and", "\\frac", "½", "<think>", "</think>", "is",
          "wrong", "答案是", "\x00", "9" * 50, "\ud800", "e", ".")  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_garbage_never_raises(kind):
    @FREE
    @given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)))
    def never_raises(text):
        judged = judge(kind, text)
        assert (judged.answer is None) == (judged.outcome is Outcome.NO_ANSWER)

    never_raises()


MEGABYTES = (
    "\\boxed{", "{", "}", "1,", "9", " ", "$", "\\", "(", "\n", "answer is ", "ANSWER: A\n", "1/",
    "####\n", "#### 5\n", "\\boxed{1} and ", "<answer>", "\\text{", "answer to x ", "A or ",
    "A is ", "I choose ", "\\frac{1", "½", "1 000 ", "is wrong. ", "\\boxed 5 ", "答案", "\x00\xff",
)  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_megabyte_of_anything_takes_no_seconds(kind):
    """All patterns are linear: one on backslashes was not."""
    rng = random.Random(0)
    noise = bytes(rng.randrange(256) for _ in range(10**6)).decode("latin1")
    worst = ("\\", "\\boxed{", "answer to x ", "9", "(")
    sizes = [(unit, 10**6 if unit in worst else 10**5) for unit in MEGABYTES]
    for text in (noise, *(unit * (size // len(unit)) for unit, size in sizes)):
        start = time.process_time()
        judge(kind, text)
        # 2 s here at most; a quadratic pattern took 69 s for a fifth of this length
        assert time.process_time() - start < 10, text[:20]
