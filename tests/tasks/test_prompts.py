import pytest

from gradejax.tasks.base import Example
from gradejax.tasks.prompts import FORMATS, expert_messages, orchestrator_messages, question_text

OPEN = Example("o", "What is 2 + 2?", None, "4")
CHOICE = Example("c", "Which is red?", ("sky", "blood", "grass"), "B")


def test_expert_prompt_is_the_papers():
    assert expert_messages(question_text(OPEN), FORMATS["gsm8k"](OPEN)) == [
        {
            "role": "system",
            "content": "You are a domain expert. Reason step by step, then end with your final "
            "answer on a new line as ANSWER: <value>.",
        },
        {
            "role": "user",
            "content": "Question: What is 2 + 2? Give only the final numeric answer after "
            "ANSWER:, with no units.",
        },
    ]


def test_orchestrator_prompt_is_the_papers():
    assert orchestrator_messages(question_text(OPEN), FORMATS["aime"](OPEN)) == [
        {
            "role": "user",
            "content": "Answer the question directly and concisely. Question: What is 2 + 2? "
            "The answer is an integer in [0, 999]. Respond with ANSWER: <integer>.",
        }
    ]


def test_options_stand_on_lines_after_the_question():
    messages = expert_messages(question_text(CHOICE), FORMATS["choice"](CHOICE))
    assert messages[1]["content"] == (
        "Question: Which is red?\nA. sky\nB. blood\nC. grass\n"
        "Choose one option (A--C). Respond with ANSWER: <letter>."
    )


@pytest.mark.parametrize("family", ["mmlu_pro", "gpqa", "choice"])
@pytest.mark.parametrize("n, letters", [(2, "A--B"), (4, "A--D"), (10, "A--J")])
def test_letters_are_those_of_the_items_own_options(family, n, letters):
    example = Example("c", "?", tuple(str(i) for i in range(n)), "A")
    slot = FORMATS[family](example)
    assert slot == f"Choose one option ({letters}). Respond with ANSWER: <letter>."


def test_a_choice_slot_needs_choices():
    with pytest.raises(ValueError, match="expected an example with choices"):
        FORMATS["gpqa"](OPEN)


def test_open_slot_asks_for_the_form_that_is_read():
    assert FORMATS["open"](OPEN) == "Give only the final answer after ANSWER:."
