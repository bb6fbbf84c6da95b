"""One number in every usual dress (E01, E07, T26), and the readings that must not be made."""

import pytest

from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.prompts import FORMATS

OPEN = Example("o", "?", None, "72")


def value(text):
    answer = KINDS["number"].extract(text, OPEN)
    return None if answer is None else KINDS["number"].canonical(answer, OPEN)


MINUS = [
    "-1234.5", "-1,234.5", "\u22121,234.5", "\u20131234.50", "\\boxed{-1234.5}",
    "ANSWER: -1,234.50", "#### -1234.5", "-$1,234.50", "$-1,234.50", "The answer is -1,234.5.",
    "-1{,}234.5", "\\boxed{-1{,}234.5}", "-1\\,234.5", "-1\u2009234.5", "-1 234.5",
    "ANSWER: -1 234.5", "**-1234.5**", "$\\boxed{-1234.5}$", "-1.2345e3",
    "-1.2345 \\times 10^3", "-1.2345 × 10³", "-1.2345*10^3", "-1.2345·10^{3}", "-2469/2",
    "\\frac{-2469}{2}", "-\\frac{2469}{2}", "minus 1,234.5", "negative 1234.5", "-€1,234.50",
    "So it is -1234.5 dollars.", "\\boxed{-\\$1234.50}", "-1234 1/2", "-1234\\frac{1}{2}",
    "-1234½", "x = -1234.5", "\\boxed{x=-1234.5}", "\\fbox{-1234.5}",
    "<answer>-1234.5</answer>", "The answer is: **-1,234.5**", "-1234.5.", "-1'234.5",
    "\\boxed{\\text{-1234.5}}", "\\boxed{-1234.5\\text{ m}}", "\\(-1234.5\\)",
    '{"answer": -1234.5}', "Answer: -1234.5\n\nI checked 2 things.",
    "The answer is -1234.5. I checked it 3 times.", "ANSWER: -1234.5 m/s",
    "\\boxed{5}. Wait, that is wrong. \\boxed{-1234.5}", "\\boxed{-1234.5}. It is not \\boxed{5}.",
    "ANSWER: about -1234.5", "ANSWER: -1234.5 \\mathrm{cm}^2", "The total is $-1,234.50 USD.",
    "#### $-1,234.5", "### Answer\n-1234.5",
]  # fmt: skip


@pytest.mark.parametrize("text", MINUS)
def test_every_dress_of_a_negative_decimal(text):
    assert value(text) == "-1234.5"


PLAIN = [
    "72 clips", "She has 72 clips.", "#### 72", "72%", "72 %", "\\boxed{72\\%}", "72 percent",
    "72.0", "72.", "$72", "72 USD", "USD 72", "US$72", "72°", "72^\\circ", "\\boxed{72^\\circ}",
    "7.2e1", "144/2", "7.2 x 10^1", "ANSWER: 72 clips (24 + 48)", "Answer: 24 + 48 = 72",
    "\\boxed{\\boxed{72}}", "\\boxed 72", "072", "72\n\n", "A: 72",
    "\\boxed{72}\n\nThe answer is 72.", "The final answer is 72 clips, since 24*3=72.",
    "<think>5</think>72", "\\boxed{\\frac{144}{2}}", "ANSWER: £72", "ANSWER: 72km",
    "ANSWER: 72 km/h", "ANSWER: 72,", "ANSWER: 72 cm^2", "ANSWER: ≈72", "ANSWER: = 72",
    "\\[ \\boxed{72} \\]", "Total: 72", "so the answer is 72!", "$72$", "ANSWER: $72$ dollars",
    "ANSWER: Rs. 72", "10^2 - 28 = 72", "**Answer: 72**", "\\boxed{72}.",
    "\\boxed{7} + more. Actually no, wait: \\boxed{72}", "The answer is \\$72.00.", "\\$72",
    "ANSWER:72", "answer = 72", "\\boxed{72} or \\boxed{\\frac{144}{2}}",
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_every_dress_of_an_integer(text):
    assert value(text) == "72"


@pytest.mark.parametrize(
    "text", ["\\boxed{72,\\!000}", "72 thousand", "72,000", "72\u202f000", "7.2 \\cdot 10^{4}"]
)
def test_thousands(text):
    assert value(text) == "72000"


@pytest.mark.parametrize(
    "text",
    ["no number", "####", "#### ,", "\\boxed{}", "<think>72", "\\boxed{72}. That is wrong.",
     "ANSWER: unknown", "#### <number>"],
)  # fmt: skip
def test_no_number_is_no_answer(text):
    assert value(text) is None


@pytest.mark.parametrize(
    "text",
    ["\\boxed{72} and \\boxed{73}", "\\boxed{72}, \\boxed{3}", "ANSWER: 72 or 73",
     "The answer is 72 or 73.", "\\boxed{72\\sqrt{2}}"],
)  # fmt: skip
def test_several_answers_and_formulas_are_not_one_right_answer_t27(text):
    judged = make_task("t", "number", FORMATS["open"]).judge(text, "stop", OPEN)
    assert judged.outcome is Outcome.WRONG


def test_signs_and_substrings_do_not_pass_for_each_other_t26():
    task = make_task("t", "number", FORMATS["open"])

    def right(text, gold):
        return task.judge(text, "stop", Example("o", "?", None, gold)).outcome is Outcome.RIGHT

    # right, and what tunix's check_numbers was seen to say: 0, 0, 1, 0
    assert right("1,000", "1000") and right("-3", "-3") and right("first 7 then 72", "72")
    assert not right("-3", "3")


def test_a_withdrawn_number_does_not_come_back_as_the_last_number():
    assert value("\\boxed{5}. Wait, that is wrong. It should be 72.") == "72"
    assert value("\\boxed{72}. I checked: \\boxed{5} is wrong.") == "72"
    assert value("ANSWER: 5\nScratch that.\nANSWER: 72") == "72"
    assert value("The answer is 5. No wait, that is incorrect.") is None
