"""Letters in every usual dress, and everything that looks like one and is none."""

import pytest

from gradejax.tasks.answers import KINDS
from gradejax.tasks.base import Example

CITIES = Example("c", "?", ("Paris", "London", "Rome", "Berlin"), "B")
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
GREEK = Example("c", "?", tuple(_GREEK.split(" ")), "B")
DIGIT_LABELS = Example("c", "?", GREEK.choices[:4], "C", meta={"labels": ("1", "2", "3", "4")})
NUMBERS = Example("c", "?", ("12", "1,200", "3.5", "0.25"), "B")
SIGNED = Example("c", "?", ("1", "-3", "-1", "1/e"), "C")
ELEMENTS = Example("c", "?", ("C", "N", "O", "H"), "C")
ROMAN = Example("c", "?", ("I only", "II only", "I and II only", "I, II, and III"), "C")


def letter(text, example=CITIES):
    return KINDS["choice"].extract(text, example)


LONDON = [
    "B", "(B)", "B.", "B)", "b", "(b)", "**B**", "*B*", "`B`", "\"B\"", "[B]", "{B}", "$B$",
    "\\(B\\)", "\\text{B}", "\\textbf{(B)}", "\\boxed{B}", "\\boxed{\\text{B}}", "\\boxed{(B)}",
    "\\boxed{\\text{(B) London}}", "\\boxed{B. London}", "\\fbox{B}", "$\\boxed{\\mathrm{B}}$",
    "\\boxed{\\textbf{B}}", "\\boxed{\\mathbf{(B)}}", "Option B", "option (B)", "Choice B.",
    "Answer: B", "Answer:B", "Answer: (B)", "Answer: **B**", "**Answer: B**", "**Answer:** B",
    "Answer: Option B", "answer: b", "ANSWER: B", "ANSWER: (B) London", "ANSWER: London",
    "Final answer: B", "Final Answer: $B$", "The answer is B", "The answer is B.",
    "The answer is (B).", "The answer is: B", "The answer is **B**.", "The answer is option B.",
    "The correct answer is B.", "The correct answer is (B) London.", "The correct option is B.",
    "The best answer is B.", "The right answer is B", "The answer would be B.",
    "The answer must be B.", "The answer is therefore B.", "The answer is most likely B.",
    "The answer is London.", "Therefore, the answer is B: London.", "So the answer is \"B\".",
    "The answer is choice B because it is.", "B is the correct answer.", "(B) is correct.",
    "Option B is the correct choice.", "B is correct.", "I choose B.",
    "I would go with option B.", "I pick (B).", "My choice is B.", "I select B",
    "So, the correct choice is (B).", "Therefore, B.", "Thus, (B).", "Hence the answer is\n\nB",
    "### Answer\nB", "**Final Answer**\n\nB", "<answer>B</answer>", "{\"answer\": \"B\"}",
    "{\"reasoning\": \"x\", \"answer\": \"B\"}", "Answer - B", "Answer = B", "Answer → B",
    "Answer (B)", "Some reasoning here about it.\n\nB", "Some reasoning here about it.\n\n(B)",
    "B\n\nBecause it is the capital.", "B. London\n\nBecause it is.", "(B) London", "B) London",
    "London", "London.",
    "Ｂ", "Answer：B", "答案是B", "答案：B", "Réponse : B", "La réponse est B.",
    "Die Antwort ist B.", "Antwort: B", "La respuesta correcta es B.", "Respuesta: B",
    "Ответ: B", "The answer is A. Wait, that is wrong. The answer is B.",
    "The answer is B, not A.", "The answer is B, since A is wrong.",
    "\\boxed{A} is wrong, so \\boxed{B}.", "\\boxed{B}. Note that it is not \\boxed{A}.",
    "It is not A. The answer is B.",
    "A is a common distractor. The answer is B. C is also wrong.", "the answer is (b)",
    "The final answer is $\\boxed{B}$. I hope it is correct.", "The answer is \\textbf{B}",
    "The answer is \\(\\textbf{(B)}\\)", "Answer: B. Some more text A.",
    "Answer: B\n\nExplanation: A is wrong, C is wrong.",
    "The correct answer is:\n\n**B. London**", "The correct answer is:\nB",
    "So the answer is (B) London, not (A) Paris.", "Of the options, only B fits. Answer B.",
    "The answer to this question is B.", "**The correct answer is B**",
    "Based on this, the answer is B", "The answer is B or, as I said, London.", "**B. London**",
    "**B) London**", "The answer is indeed B.", "My final answer is B.",
    "I believe the answer is B", "I think it is B.\n\nAnswer: B", "The correct letter is B.",
    "Correct answer: B", "correct option: B", "Choice: B", "Option: B", "So I would answer B.",
    "Selected answer: B", "The answer is\nB", "The correct answer is option **(B)**: London.",
    "Let's see. (A) no. (B) yes. (C) no.\nThe answer: (B)", "Answer: $\\text{(B)}$",
    "The answer is $\\mathbf{B}$.", "[[B]]", "The answer is <B>", "\"answer\": \"B\"",
    "'answer': 'B'", "Answer is B", "The answer is: \\boxed{B}", "The answer is ( B ).",
    "The answer is B\\.", "Thus the correct answer is \\( \\text{B} \\).",
]  # fmt: skip


@pytest.mark.parametrize("text", LONDON)
def test_every_dress_of_b(text):
    assert letter(text) == "B"


NONE = [
    "The answer is A or B.", "The answer is A and B", "Answer: A, B", "Answer: A/B",
    "Answer: (A) or (B)", "\\boxed{A} or \\boxed{B}", "\\boxed{A, B}", "\\boxed{A}, \\boxed{C}",
    "ANSWER: A, C and D", "Both A and B are correct.", "Either A or B.",
    "Neither A nor B is correct.", "The answer is either A or B.",
    "I cannot determine the answer.", "A man walks into a bar.", "I think so.", "It could be B.",
    "Vitamin B is nice and so is C.", "Plan B failed.", "Grade A beef", "", "A\nB\nC\nD",
    "A. Paris\nB. London\nC. Rome\nD. Berlin", "The answer is E.", "The answer is not A.",
    "Error: rate limited", "As an AI I cannot answer.", "The answer is A common one",
    "I would not choose B.", "I do not know", "Section B describes it.", "A: the sky",
    "The answer is A. Wait, that is wrong.", "Which option is best: A?", "x = A + B",
    "The options are A, B, C and D.", "Answer: none of the above", "The answer is unclear.",
    "none", "\\boxed{5}", "Answer: A and also B", "Answer: A; B", "I choose A or B.",
    "Answer: A & D", "(A) and (C)", "A, C", "A or B", "<answer>A, B</answer>",
    "The answer is A, maybe B.", "Answer: A (or B)", "If A is correct then",
    "To choose B would be wrong.",
]  # fmt: skip


@pytest.mark.parametrize("text", NONE)
def test_several_letters_and_letters_in_prose_are_no_answer(text):
    assert letter(text) is None


@pytest.mark.parametrize(
    "text, want",
    [
        ("The answer is I", "I"),
        ("The answer is (I).", "I"),
        ("I", "I"),
        ("I cannot determine the answer.", None),
        ("Answer: I", "I"),
        ("I think this is hard.", None),
        ("ANSWER: I cannot say", None),
        ("**(J)**", "J"),
        ("The answer is I, since iota.", "I"),
        ("The answer is J.", "J"),
        ("The answer is K", None),
        ("ANSWER: iota", "I"),
    ],
)
def test_the_pronoun_is_told_from_the_ninth_option(text, want):
    assert letter(text, GREEK) == want


@pytest.mark.parametrize(
    "text, want",
    [
        ("The answer is 3.", "C"),
        ("3", "C"),
        ("(3)", "C"),
        ("Answer: 3", "C"),
        ("\\boxed{3}", "C"),
        ("C", "C"),
        ("ANSWER: (3) gamma", "C"),
        ("5", None),
        ("The answer is 3 or 4", None),
        ("Option 3", "C"),
        ("ANSWER: 3", "C"),
    ],
)
def test_digit_labels_e05(text, want):
    assert letter(text, DIGIT_LABELS) == want


@pytest.mark.parametrize(
    "text, want",
    [
        ("Option 3", "C"),
        ("The answer is option 2.", "B"),
        ("The answer is 3.", None),
    ],
)
def test_digits_count_only_as_labels(text, want):
    assert letter(text, CITIES) == want


@pytest.mark.parametrize(
    "text, want",
    [
        ("The answer is 1200.", "B"),
        ("ANSWER: $1,200$", "B"),
        ("\\boxed{3.50}", "C"),
        ("Answer: 1/4", "D"),
        ("The answer is 7", None),
        ("ANSWER: 12", "A"),
    ],
)
def test_options_that_are_numbers(text, want):
    assert letter(text, NUMBERS) == want


@pytest.mark.parametrize(
    "text, want",
    [
        ("The answer is C.", "C"),
        ("ANSWER: N", "B"),
        ("O", "C"),
    ],
)
def test_a_letter_is_a_label_before_it_is_a_text(text, want):
    assert letter(text, ELEMENTS) == want


@pytest.mark.parametrize(
    "text, want",
    [
        ("The answer is I and II only.", "C"),
        ("ANSWER: I only", "A"),
        ("Answer: C. I and II only", "C"),
    ],
)
def test_options_that_begin_with_a_letter(text, want):
    assert letter(text, ROMAN) == want


def test_a_letter_before_a_number_is_not_overruled_by_the_number():
    # "(C) -1" once matched option A: the only number in it, its sign taken for a dash
    assert letter("The answer is (C) -1.", SIGNED) == "C"
    assert letter("**D. 1/e**", SIGNED) == "D"
    assert letter("The answer is -3.", SIGNED) == "B"


def test_a_withdrawn_letter_is_no_answer_and_the_strict_reading_takes_marks_only():
    strict = KINDS["choice"].strict
    assert letter("\\boxed{A}. Wait, that is wrong. The answer is C.") == "C"
    assert strict("\\boxed{A}. Wait, that is wrong. The answer is C.", CITIES) is None
    assert strict("The answer is B", CITIES) is None and strict("ANSWER: B", CITIES) == "B"
    assert strict("\\boxed{A}. No: the answer is B.", CITIES) == "A"
    # the faulty reading: the first or last single capital anywhere
    assert letter("I cannot determine the answer.", GREEK) != "I"
