"""What may be asked of a system: texts, Examples, dicts; and what is said of anything else."""

import pytest

from gradejax.systems.requests import examples_of
from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example
from gradejax.tasks.code import make_code_task
from gradejax.tasks.prompts import FORMATS

TEXT = make_task("mine", "text", FORMATS["open"])
CHOICE = make_task("mine", "choice", FORMATS["choice"])


def test_the_lines_of_a_file_are_questions():
    row = {"id": 7, "question": "Which?", "choices": ["x", "y"], "answer": "A", "level": 3}
    (example,) = examples_of([row], CHOICE)
    assert example == Example("0:7", "Which?", ("x", "y"), "A", meta={"level": 3})
    one, two = examples_of(["Why?", {"question": "Why?", "choices": None}], TEXT)
    assert (one.id, two.id) == ("0", "1") and one.question == two.question
    assert examples_of([example, example], CHOICE)[1].id == "1:0:7"


def test_only_choices_need_options():
    needs = {kind for kind in KINDS if make_task("t", kind, FORMATS["open"]).needs_choices}
    assert needs == {"choice"}


@pytest.mark.parametrize(
    ("questions", "task", "said"),
    [
        (["Which?"], CHOICE, "question 0 has no options; this system .task 'mine'. chooses among"),
        ([Example("a", "Which?", (), "")], CHOICE, "question 0 has no options"),
        ([{"question": "Which?", "choices": ["x"]}], CHOICE, "'choices' must be a list of 2 to 26"),
        ([{"question": "Which?", "choices": ["x", 2]}], CHOICE, "'choices' must be a list"),
        ([{"text": "Which?"}], TEXT, r"question 0 must be .* got a dict with \['text'\]"),
        ([{"question": " "}], TEXT, "question 0 must be a non-empty text"),
        ({"question": "Which?"}, TEXT, "got a single one"),
        ("Which?", TEXT, "got a single one"),
        (["def f():"], make_code_task("code", FORMATS["code"]),
         r"question 0 has no \['entry_point'\]; the task 'code' needs them"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_said(questions, task, said):
    with pytest.raises(ValueError, match=said):
        examples_of(questions, task)
