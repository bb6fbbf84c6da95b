"""From replies to arrays: candidates, missing calls, packed batches and their shares."""

import dataclasses

import fakes
import jax
import numpy as np
import pytest

from gradejax.experts.replies import Missing, Reply, Usage
from gradejax.systems.questions import (
    candidates_of,
    make_question_set,
    pad_records,
    split_batch,
    unpack_trunk,
)
from gradejax.tasks.base import Example, Judged, Outcome, Task
from gradejax.types import NO_ANSWER, Pool

POOL = Pool(
    agents=("A1", "A2"), managers=("m",), manager_of=(0, 0), params=(2, 3, 1), widths=(3, 2, 4),
    candidate_width=5, trunk_width=6,
)  # fmt: skip


def extract(text, example):
    return text.rpartition("ANSWER:")[2].strip() or None if "ANSWER:" in text else None


TASK = Task(
    name="fake", format_slot=lambda e: "", extract=extract,
    canonical=lambda a, e: a.lower().rstrip("."), grade=lambda a, e: a is not None
    and a.lower().rstrip(".") == e.answer.lower(),
)  # fmt: skip
OPEN = Example("q1", "?", None, "seven", family="x")
CHOICE = Example("q2", "?", ("red", "green", "blue"), "B", family="y")
CHOOSE = dataclasses.replace(
    TASK, canonical=lambda a, e: a.upper(),
    grade=lambda a, e: a is not None and a.upper() == e.answer,
)  # fmt: skip


def judged(*texts, task=TASK, example=OPEN):
    return [None if t is None else task.judge(t, "stop", example) for t in texts]


def test_open_candidates_are_the_distinct_answers_in_seat_order():
    got = candidates_of(OPEN, TASK, judged("ANSWER: nine", "ANSWER: Seven.", "ANSWER: seven"))
    assert got == (("nine", "seven"), [0, 1, 1], {1})
    # The right answer is not moved to the front, nor put there when nobody gave it.
    assert candidates_of(OPEN, TASK, judged("ANSWER: nine", "?", "ANSWER: two")) == (
        ("nine", "two"), [0, NO_ANSWER, 1], set())  # fmt: skip
    assert candidates_of(OPEN, TASK, judged("?", None, "ANSWER: seven")) == (
        ("seven",), [NO_ANSWER, NO_ANSWER, 0], {0})  # fmt: skip
    assert candidates_of(OPEN, TASK, judged(None, None, None)) == ((), [-1, -1, -1], set())


def test_choices_are_all_candidates():
    said = judged("ANSWER: c", "no idea", "ANSWER: B", task=CHOOSE, example=CHOICE)
    assert candidates_of(CHOICE, CHOOSE, said) == (
        ("A. red", "B. green", "C. blue"), [2, NO_ANSWER, 1], {1})  # fmt: skip
    # Gold is a candidate though nobody chose it; a letter beyond the options is no answer.
    said = judged("ANSWER: F", None, "ANSWER: A", task=CHOOSE, example=CHOICE)
    assert candidates_of(CHOICE, CHOOSE, said)[1:] == ([NO_ANSWER, NO_ANSWER, 0], {1})


def test_a_canonical_form_that_disagrees_with_the_grader_is_an_error():
    right = [Judged(Outcome.RIGHT, t, t) for t in ("7", "7.0")]
    with pytest.raises(ValueError, match=r"q1: answers \['7', '7.0'\].*canonical\(\) must agree"):
        candidates_of(OPEN, TASK, right)


def reply(text, width, *, finish="stop", tokens=3):
    return Reply(
        text=text, tokens=np.arange(tokens, dtype=np.int32), logprobs=np.zeros(tokens, np.float32),
        finish_reason=finish, hidden=np.full(width, float(len(text)), np.float32), prompt_tokens=10,
        seconds=0.0,
    )  # fmt: skip


def questions():
    examples = [OPEN, dataclasses.replace(OPEN, id="q3", family="y", answer="two")]
    replies = {
        "A1": [reply("ANSWER: nine", 3), Missing("failed", "down")],
        "A2": [reply("ANSWER: seven", 2, finish="length"), reply("ANSWER: TWO", 2, tokens=5)],
        "M0": [reply("ANSWER: seven", 4), reply("hm", 4)],
    }
    seen = []

    def embed(texts):
        seen.append(list(texts))
        return np.array([[len(t)] * 5 for t in texts], np.float32)

    trunk = [np.ones((t, 6), np.float32) * t for t in (4, 7)]
    got = make_question_set(examples, TASK, POOL, replies, trunk, np.zeros((2, 6)), embed,
                            ("x", "y"), first_id=40)  # fmt: skip
    assert seen == [["nine", "seven", "two"]]  # each distinct text once
    return got, examples, replies


def test_records_of_replies():
    got, *_ = questions()
    r = got.records
    assert r.ids.tolist() == [40, 41] and r.family.tolist() == [0, 1] and r.valid.all()
    assert r.available.tolist() == [[True, True, True], [False, True, True]]
    # A reply cut by the limit has features and a price, but no answer.
    assert r.answers.tolist() == [[0, -1, 1], [-1, 0, -1]] and r.gold.argmax(1).tolist() == [1, 0]
    assert r.gold.sum(1).tolist() == [1, 1]
    assert r.tokens.tolist() == [[13, 13, 13], [0, 15, 13]]
    assert [f.shape for f in r.features] == [(2, 3), (2, 2), (2, 4)]
    assert r.features[0][0].tolist() == [12] * 3 and not r.features[0][1].any()
    assert r.features[1][0].tolist() == [13] * 2
    assert r.candidate_mask.tolist() == [[True, True, False], [True, False, False]]
    assert r.candidates[0, 0].tolist() == [4] * 5 and r.candidates[1, 0].tolist() == [3] * 5
    assert not r.candidates[~r.candidate_mask].any() and not r.choices.any()
    assert got.texts == (("nine", "seven"), ("two",))
    assert got.replies[0] == ("ANSWER: nine", None) and len(got) == 2 and got.longest == 7


@pytest.mark.parametrize("count", [3_000_000_000, 2**31, 10**400, -1, float("inf"), None])
def test_a_stored_absurd_count_is_estimated(count):
    # It would end the run after all calls were paid, and every later one that reads the record.
    said = dataclasses.replace(reply("ANSWER: seven", 3), usage=Usage(count, 1.0, False, "m", 1))
    replies = {"A1": [said], "A2": [reply("ANSWER: seven", 2)], "M0": [reply("ANSWER: two", 4)]}
    got = make_question_set([OPEN], TASK, POOL, replies, [np.ones((4, 6), np.float32)],
                            np.zeros((1, 6)), lambda texts: np.ones((len(texts), 5), np.float32),
                            ("x", "y"), first_id=0)  # fmt: skip
    # Ten of the prompt, and 13 bytes of text.
    assert got.records.tokens.tolist() == [[10 + 4, 13, 13]]


def test_more_options_than_seats():
    many = Example("q", "?", tuple("vwxyz"), "E", family="x")
    seats = zip(("A1", "A2", "M0"), POOL.widths, strict=True)
    replies = {seat: [reply("ANSWER: E", width)] for seat, width in seats}
    got = make_question_set(
        [many], CHOOSE, POOL, replies, [np.ones((2, 6))], np.zeros((1, 6)),
        lambda texts: np.ones((len(texts), 5)), ("x",), first_id=0,
    )  # fmt: skip
    assert got.records.candidate_mask.shape == (1, 5) and got.records.candidate_mask.all()
    assert got.records.choices.all() and got.records.answers.tolist() == [[4, 4, 4]]


def test_replies_must_fit_the_questions():
    _, examples, replies = questions()
    with pytest.raises(ValueError, match="A2 has 1 replies to 2 questions"):
        make_question_set(examples, TASK, POOL, replies | {"A2": replies["A2"][:1]}, [], [], None,
                          ("x", "y"), first_id=0)  # fmt: skip


def test_batches_are_filled_up_and_packed():
    got, *_ = questions()
    assert got.rows_needed([0, 1], 11) == 1 and got.rows_needed([0, 1], 10) == 2
    batch = got.batch([1, 0], size=3, packed_rows=2, row_length=8)
    assert batch.records.ids.tolist() == [41, 40, -1]
    assert batch.records.valid.tolist() == [True, True, False]
    assert not batch.records.available[2].any() and (batch.records.answers[2] == -1).all()
    assert batch.records.gold.nonzero()[0].tolist() == [0, 1]
    assert batch.records.gold.nonzero()[1].tolist() == [0, 1]
    assert batch.trunk.states.shape == (2, 8, 6)
    states = unpack_trunk(batch.trunk)
    assert [len(s) for s in states] == [7, 4, 0]
    np.testing.assert_array_equal(states[0], got.trunk[1])
    np.testing.assert_array_equal(states[1], got.trunk[0])
    np.testing.assert_array_equal(got.records.ids, [40, 41])  # the set itself is untouched
    with pytest.raises(ValueError, match="2 questions do not fit a batch of 1"):
        got.batch([0, 1], size=1, packed_rows=1, row_length=8)
    with pytest.raises(ValueError, match="need 2 packed rows, got 1"):
        got.batch([0, 1], size=2, packed_rows=1, row_length=8)


def test_padding_leaves_its_source_alone():
    records = fakes.batch(3).records
    assert pad_records(records, 0) is records
    before = records.answers.copy()
    padded = pad_records(records, 2)
    assert padded.num_questions == 5 and padded.valid.tolist() == [True] * 3 + [False] * 2
    assert (padded.ids[3:] == -1).all() and (padded.gold[3:] == -1).all()
    np.testing.assert_array_equal(records.answers, before)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:3], b), padded, records)


@pytest.mark.parametrize("row_length", [9, 24])
def test_splitting_keeps_every_question(row_length):
    whole = fakes.batch(12, seed=3, rows=12, row_length=row_length)
    cut = split_batch(whole, 4, 3, row_length)
    assert cut.trunk.states.shape[:3] == (4, 3, row_length)
    states = unpack_trunk(whole.trunk)
    for d in range(4):
        share = jax.tree.map(lambda x, d=d: x[d], cut)
        rows = slice(3 * d, 3 * d + 3)
        np.testing.assert_array_equal(share.records.ids, whole.records.ids[rows])
        for mine, want in zip(unpack_trunk(share.trunk), states[rows], strict=True):
            np.testing.assert_array_equal(mine, want)
            assert len(want) >= 3
        assert set(np.unique(share.trunk.segments)) <= {0, 1, 2, 3}
    with pytest.raises(ValueError, match="12 rows cannot be cut into 5 equal shares"):
        split_batch(whole, 5, 3, row_length)
