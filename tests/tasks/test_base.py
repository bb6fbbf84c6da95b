import pickle

import pytest

from gradejax.tasks.answers import make_task
from gradejax.tasks.base import (
    MISSING_CALL,
    Example,
    Judged,
    Outcome,
    after_thinking,
    outcome_shares,
)
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.splits import within_length

EXAMPLE = Example("q", "What is 6 * 7?", None, "42")
TASK = make_task("numbers", "number", FORMATS["gsm8k"])


def test_cut_replies_give_no_answer_f02():
    replies = [(None, "length"), ("42", "stop"), ("the answer is 4", "length")]
    judged = [TASK.judge(text, reason, EXAMPLE) for text, reason in replies]
    assert [j.answer for j in judged] == [None, "42", None]
    assert [j.truncated for j in judged] == [True, False, True]
    assert [j.outcome for j in judged] == [Outcome.TRUNCATED, Outcome.RIGHT, Outcome.TRUNCATED]
    assert outcome_shares(judged)["truncated"] == pytest.approx(0.666667, abs=1e-6)
    # the fault grades the cut reply: read as if finished it does give an answer
    assert TASK.judge("the answer is 4", "stop", EXAMPLE).answer == "4"
    assert within_length([100, 512, 513, 700], 512) == ([0, 1], [2, 3])


def test_a_cut_reply_scores_nothing_even_when_its_number_is_right():
    cut = Judged(Outcome.TRUNCATED, None, None, Outcome.TRUNCATED)
    assert TASK.judge("so 42 is", "length", EXAMPLE) == cut and cut.truncated
    assert TASK.judge("so 42 is", "max_tokens", EXAMPLE).truncated
    assert TASK.judge("so 42 is", "stop", EXAMPLE).outcome is Outcome.RIGHT


def test_no_answer_is_not_wrong():
    assert TASK.judge("I cannot tell.", "stop", EXAMPLE).outcome is Outcome.NO_ANSWER
    assert TASK.judge(None, "stop", EXAMPLE).outcome is Outcome.NO_ANSWER
    nothing = Outcome.NO_ANSWER
    assert TASK.judge("", "stop", EXAMPLE) == Judged(nothing, None, None, nothing)
    assert TASK.judge("41", "stop", EXAMPLE) == Judged(Outcome.WRONG, "41", "41", nothing)
    assert TASK.grade(None, EXAMPLE) is False


@pytest.mark.parametrize(
    "text, visible",
    [
        ("no tags", "no tags"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),  # the template opened the thought in the prompt
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a", None),
        ("<think>a</think>b<think>c", None),
        ("<Thinking>a</THINKING>b", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("◁think▷a◁/think▷b", "b"),
        ("<|begin_of_thought|>a<|end_of_thought|>b", "b"),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b", "b"),
        ("<|channel|>analysis<|message|>a", None),
        ("a < b [c]", "a < b [c]"),
    ],
)
def test_after_thinking(text, visible):
    assert after_thinking(text) == visible
    if visible is not None:
        assert after_thinking(visible) == visible


def test_thinking_is_cut_off_before_any_family_reads():
    # \boxed{7} is only thought of; an unfinished thought is no answer although it holds one
    assert TASK.judge("<think>\\boxed{7}</think>\\boxed{42}", "stop", EXAMPLE).answer == "42"
    assert TASK.judge("<think>\\boxed{42}", "stop", EXAMPLE).outcome is Outcome.NO_ANSWER
    assert TASK.judge("<think>\\boxed{42}</think>", "stop", EXAMPLE).outcome is Outcome.NO_ANSWER


def test_shares_add_up_and_refuse_nothing():
    judged = [TASK.judge(text, "stop", EXAMPLE) for text in ("42", "42.0", "7", "none")]
    shares = outcome_shares(judged)
    assert shares == {
        "correct": 0.5, "wrong": 0.25, "no_answer": 0.25, "truncated": 0.0, "missing": 0.0
    }  # fmt: skip
    with pytest.raises(ValueError, match="at least one"):
        outcome_shares([])


def test_examples_are_values():
    again = Example("q", "What is 6 * 7?", None, "42", meta={})
    assert again == EXAMPLE and hash(again) == hash(EXAMPLE)
    assert hash(Example("q", "", None, "42", meta={"entry": {}})) is not None
    assert pickle.loads(pickle.dumps(EXAMPLE)) == EXAMPLE


def test_five_outcomes_are_counted_apart_and_add_up():
    judged = [TASK.judge("ANSWER: 42", "stop", EXAMPLE), TASK.judge("41", "stop", EXAMPLE),
              TASK.judge("?", "stop", EXAMPLE), TASK.judge("42", "length", EXAMPLE),
              MISSING_CALL]  # fmt: skip
    assert outcome_shares(judged) == {outcome.value: 0.2 for outcome in Outcome}
    assert MISSING_CALL.missing and not MISSING_CALL.truncated and MISSING_CALL.answer is None


def test_strict_and_flexible_readings_are_never_mixed():
    # "It is 42" is right for the flexible reading alone; the box is right for both
    judged = [TASK.judge(text, "stop", EXAMPLE) for text in ("It is 42", "\\boxed{42}")]
    assert [(j.outcome, j.strict) for j in judged] == [
        (Outcome.RIGHT, Outcome.NO_ANSWER), (Outcome.RIGHT, Outcome.RIGHT)
    ]  # fmt: skip
    assert outcome_shares(judged)["correct"] == 1.0
    assert outcome_shares(judged, strict=True)["correct"] == 0.5
    # a cue after the box is the flexible answer only
    both = TASK.judge("\\boxed{41}. No: the answer is 42.", "stop", EXAMPLE)
    assert (both.answer, both.strict_answer) == ("42", "41")
    assert (both.outcome, both.strict) == (Outcome.RIGHT, Outcome.WRONG)
    without = Judged(Outcome.RIGHT, "42", "42")
    with pytest.raises(ValueError, match="a family without one"):
        outcome_shares([without, both], strict=True)
