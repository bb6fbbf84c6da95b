import dataclasses

import numpy as np
import pytest

from gradejax.evaluation.outcome import agent_correct, is_right, outcome_from_decisions


def test_several_candidates_may_be_right(make_records):
    records = make_records([[0, 1, 2, -1]], gold=[0])
    both = records.replace(gold=np.array([[True, True, False]]))
    assert is_right(records, records.answers).tolist() == [[True, False, False, False]]
    assert is_right(both, both.answers).tolist() == [[True, True, False, False]]
    assert is_right(both, np.array([1])).tolist() == [True]
    assert is_right(both, np.array([-1])).tolist() == [False]


def test_silence_is_not_right_when_gold_is_no_candidate(make_records):
    # Both are -1: comparing them would make both agents right on question 0.
    records = make_records([[-1, -1], [0, -1]], gold=[-1, 0])
    np.testing.assert_array_equal(agent_correct(records), [[False, False], [True, False]])


def test_costs_by_hand(make_records, make_pool):
    records = make_records(
        [[0, 1, 0], [0, 1, 0], [0, 1, 0]], gold=[0, 0, 0], tokens=[[3, 5, 7]] * 3
    )
    asked = [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    pool = make_pool(100, 20, 1)
    grade = outcome_from_decisions(
        records, pool, [0, 1, 0], asked, [2, 1, 0], orchestrator_always=True
    )
    np.testing.assert_array_equal(grade.active_params, [121, 21, 1])  # M0 once, also at depth 0
    np.testing.assert_array_equal(grade.tokens, [15, 12, 7])
    np.testing.assert_array_equal(grade.agents, [2, 1, 1])
    np.testing.assert_array_equal(grade.correct, [1, 0, 1])
    np.testing.assert_array_equal(grade.depth, [2, 1, 0])
    alone = outcome_from_decisions(
        records, pool, [0, 1, 0], asked, [2, 1, 0], orchestrator_always=False
    )
    np.testing.assert_array_equal(alone.active_params, [120, 20, 1])
    np.testing.assert_array_equal(alone.tokens, [8, 5, 7])


def test_failed_calls_cost_nothing_and_all_failed_is_not_covered(make_records, make_pool):
    records = make_records([[0, 0, 0], [0, 0, 0]], gold=[0, 0], missing=[(0, 0), (1, 0), (1, 1)])
    asked = [[1, 1, 0], [1, 1, 0]]
    out = outcome_from_decisions(
        records, make_pool(100, 20, 1), [0, 0], asked, [1, 1], orchestrator_always=True
    )
    np.testing.assert_array_equal(out.covered, [True, False])
    np.testing.assert_array_equal(out.agents, [1, 0])
    np.testing.assert_array_equal(out.active_params, [21, 0])
    np.testing.assert_array_equal(out.correct, [1, 0])


def test_padding_rows_carry_nothing(make_records, make_pool):
    records = make_records([[0, 0], [0, 0]], gold=[0, 0], valid=[True, False])
    out = outcome_from_decisions(
        records, make_pool(5, 1), [0, 77], np.ones((2, 2)), [1, 1], orchestrator_always=True
    )
    for field in ("covered", "correct", "agents", "depth", "tokens", "active_params"):
        assert getattr(out, field)[1] == 0 and getattr(out, field)[0] != 0


def test_wrong_input_is_refused(make_records, make_pool):
    records = make_records([[0, 0]], gold=[0])
    with pytest.raises(ValueError, match="2 agent columns"):
        outcome_from_decisions(
            records, make_pool(5, 5, 1), [0], [[1, 1]], [1], orchestrator_always=True
        )
    with pytest.raises(ValueError, match="not a candidate index"):
        outcome_from_decisions(
            records, make_pool(5, 1), [9], [[1, 1]], [1], orchestrator_always=True
        )
    good = outcome_from_decisions(
        records, make_pool(5, 1), [0], [[1, 1]], [1], orchestrator_always=True
    )
    with pytest.raises(ValueError, match="'tokens'"):
        dataclasses.replace(good, tokens=np.zeros(3))
