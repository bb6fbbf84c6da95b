import dataclasses

import numpy as np
import pytest

from gradejax.evaluation import baselines
from gradejax.evaluation.outcome import agent_correct


def same(first, second, rows):
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(
            getattr(first, field.name), getattr(second, field.name)[:rows], field.name
        )


@pytest.fixture
def table(make_records, make_pool):
    """Three experts and M0 on five questions of two families; gold is candidate 0 throughout."""
    records = make_records(
        [[0, 1, 1, 1], [0, 0, 1, 2], [1, 2, 0, 0], [1, 1, 0, 1], [-1, -1, -1, 0]],
        gold=[0, 0, 0, 0, 0],
        family=[0, 0, 1, 1, 1],
    )
    return records, make_pool(100, 100, 40, 1)


def test_singles(table):
    records, pool = table
    expected = {
        "A1": [1, 1, 0, 0, 0],
        "A2": [0, 1, 0, 0, 0],
        "A3": [0, 0, 1, 1, 0],
        "M0": [0, 0, 1, 0, 1],
    }
    for agent, right in expected.items():
        out = baselines.single(records, pool, agent)
        np.testing.assert_array_equal(out.correct, right)
        np.testing.assert_array_equal(out.agents, 1)
        np.testing.assert_array_equal(out.depth, 0 if agent == "M0" else 1)
        np.testing.assert_array_equal(out.active_params, {"A3": 40, "M0": 1}.get(agent, 100))
    with pytest.raises(ValueError, match=r"A1.*got \['A9'\]"):
        baselines.single(records, pool, "A9")


def test_vote_by_hand(table):
    records, pool = table
    # Question 2 is a three-way tie: A1's answer 1 wins. argmax over candidates would say 0, and be
    # right. Question 4: nobody votes; a vote that counted -1 as a candidate, or argmax of zeros,
    # could say 0.
    out = baselines.vote(records, pool)
    np.testing.assert_array_equal(out.correct, [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(out.covered, True)
    np.testing.assert_array_equal(
        out.active_params, 240
    )  # A1 and A2 may share weights: each call counts
    np.testing.assert_array_equal(out.tokens, 30)
    with_m0 = baselines.vote(records, pool, ["A1", "A2", "A3", "M0"])
    # Now question 2 has two votes for 0, and question 4 has M0's.
    np.testing.assert_array_equal(with_m0.correct, [0, 1, 1, 0, 1])
    np.testing.assert_array_equal(with_m0.active_params, 241)


def test_tie_goes_to_the_lowest_agent_with_that_answer(make_records, make_pool):
    # 2 votes for candidate 1 (A1, A4), 2 for candidate 0 (A2, A3): A1 is lowest, so candidate 1.
    records = make_records([[1, 0, 0, 1, -1]], gold=[1])
    assert baselines.vote(records, make_pool(1, 1, 1, 1, 1)).correct == [1]
    # Without A1 the tie is broken by majority: candidate 0.
    assert baselines.vote(records, make_pool(1, 1, 1, 1, 1), ["A4", "A3", "A2"]).correct == [0]


def test_missing_agents_do_not_vote(make_records, make_pool):
    records = make_records(
        [[1, 1, 0, 0], [1, 1, 0, 0]], gold=[0, 0], missing=[(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    )
    out = baselines.vote(records, make_pool(7, 5, 3, 1))
    np.testing.assert_array_equal(out.correct, [1, 0])
    np.testing.assert_array_equal(out.covered, [True, False])
    np.testing.assert_array_equal(out.active_params, [3, 0])


def test_vote_of_one_is_that_agent(table):
    records, pool = table
    for agent in ("A1", "A2", "A3", "M0"):
        same(baselines.single(records, pool, agent), baselines.vote(records, pool, [agent]), 5)


def test_self_consistency_at_budget(table):
    records, pool = table
    group = ["A1", "A2", "A3"]
    same(baselines.self_consistency(records, pool, group), baselines.vote(records, pool), 5)
    two = baselines.self_consistency(records, pool, group, budget=2)
    np.testing.assert_array_equal(two.agents, 2)
    np.testing.assert_array_equal(two.correct, [1, 1, 0, 0, 0])  # ties go to A1
    with pytest.raises(ValueError, match="budget"):
        baselines.self_consistency(records, pool, group, budget=4)


def test_random_expectation_by_hand(make_records, make_pool):
    records = make_records(
        [[0, 0, 1, 0], [0, 1, 1, 0]], gold=[0, 0], missing=[(1, 2)], tokens=[[1, 2, 6, 9]] * 2
    )
    out = baselines.random_expected(records, make_pool(30, 60, 90, 1))
    # Question 0: 2 of 3 right (with M0 it would be 3/4); question 1: 1 of the 2 that are there, not
    # 1/3.
    np.testing.assert_allclose(out.correct, [2 / 3, 1 / 2])
    np.testing.assert_allclose(out.active_params, [60, 45])
    np.testing.assert_allclose(out.tokens, [3, 1.5])
    np.testing.assert_array_equal(out.agents, 1)


def test_random_samples_average_to_the_expectation(make_records, make_pool):
    rng = np.random.default_rng(0)
    missing = [(q, a) for q in range(40) for a in range(3) if rng.random() < 0.3]
    records = make_records(rng.integers(0, 2, (40, 4)), gold=[0] * 40, missing=missing)
    pool = make_pool(30, 60, 90, 1)
    expected = baselines.random_expected(records, pool)
    draws = [baselines.random_sampled(records, pool, seed) for seed in range(2000)]
    np.testing.assert_array_equal(draws[0].covered, expected.covered)
    for field in ("correct", "active_params"):
        mean, exact = np.mean([getattr(d, field) for d in draws], 0), getattr(expected, field)
        scale = 1 if field == "correct" else 60
        np.testing.assert_allclose(mean, exact, atol=scale * 4.5 * 0.5 / np.sqrt(2000))


def test_random_draw_belongs_to_the_question_not_to_the_row(make_records, make_pool):
    rng = np.random.default_rng(1)
    answers, pool = rng.integers(0, 2, (30, 4)), make_pool(30, 60, 90, 1)
    forward = baselines.random_sampled(make_records(answers, gold=[0] * 30), pool, 3)
    back = baselines.random_sampled(
        make_records(answers[::-1], gold=[0] * 30, ids=np.arange(30)[::-1]), pool, 3
    )
    np.testing.assert_array_equal(forward.active_params, back.active_params[::-1])


def test_hashed_uniform_is_uniform_and_seeds_differ():
    u = np.array([baselines.hashed_uniform(np.arange(2000), seed) for seed in range(5)])
    assert u.min() >= 0 and u.max() < 1
    for row in u:
        counts = np.histogram(row, bins=10, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 27.9  # χ² with 9 degrees of freedom, p = .001
    correlation = np.corrcoef(u) - np.eye(5)
    assert np.abs(correlation).max() < 0.08  # 3.5 standard errors


def test_best_single_and_family_best(table):
    records, pool = table
    # A1, A3 and M0 have 2 of 5 each: the tie goes to A1. Per family: A1 on 0; A3 and M0 tie on 1
    # with 2 of 3.
    assert baselines.best_column(records, pool) == 0
    assert baselines.family_best_columns(records, pool) == {0: 0, 1: 2}
    out = baselines.family_best(records, pool)
    np.testing.assert_array_equal(out.correct, [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(out.active_params, [100, 100, 40, 40, 40])


def test_family_best_of_one_family_is_best_single(table):
    records, pool = table
    alone = records.replace(family=np.zeros(5, np.int32))
    same(baselines.best_single(alone, pool), baselines.family_best(alone, pool), 5)


def test_hindsight_passes_over_an_agent_that_hardly_replied(make_records, make_pool):
    # A1 replied once of four, right; A2 three right of four. By accuracy where it replied A1 would
    # win.
    records = make_records(
        [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 1]], gold=[0] * 4, missing=[(1, 0), (2, 0), (3, 0)]
    )
    assert baselines.best_column(records, make_pool(5, 5, 1)) == 1
    # But a busy agent is not scored as wrong: A1 right on both of its two, A2 on three of four.
    records = make_records(
        [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 1]], gold=[0] * 4, missing=[(2, 0), (3, 0)]
    )
    assert baselines.best_column(records, make_pool(5, 5, 1)) == 0


def test_oracle_asks_the_smallest_right_agent(table):
    records, pool = table
    out = baselines.oracle(records, pool)
    np.testing.assert_array_equal(out.correct, [1, 1, 1, 1, 1])
    np.testing.assert_array_equal(out.active_params, [100, 100, 1, 40, 1])
    np.testing.assert_array_equal(out.correct, agent_correct(records).any(1))
    np.testing.assert_array_equal(out.depth, [1, 1, 0, 1, 0])


def test_oracle_never_asks_a_missing_agent(make_records, make_pool):
    records = make_records([[0, 1, 1]], gold=[0], missing=[(0, 0), (0, 2)])
    out = baselines.oracle(records, make_pool(9, 5, 1))
    assert out.covered == [True] and out.correct == [0] and out.active_params == [5]


def test_all_no_answer(make_records, make_pool):
    records, pool = make_records([[-1, -1, -1]] * 3, gold=[-1, 0, 1]), make_pool(9, 5, 1)
    for name in ("vote", "random_expected", "best_single", "family_best", "oracle"):
        out = getattr(baselines, name)(records, pool)
        np.testing.assert_array_equal(out.correct, 0, name)
        np.testing.assert_array_equal(
            out.covered, True, name
        )  # a reply without an answer is an outcome


@pytest.mark.parametrize(
    "name", ["vote", "random_expected", "best_single", "family_best", "oracle"]
)
def test_padding_is_inert(table, padded, name):
    records, pool = table
    baseline = getattr(baselines, name)
    long = baseline(padded(records), pool)
    same(baseline(records, pool), long, 5)
    assert not long.covered[5:].any() and not long.correct[5:].any() and not long.tokens[5:].any()


def test_padding_does_not_choose_the_best_agent(make_records, make_pool):
    records = make_records(
        [[0, 1, 1], [1, 0, 0], [1, 0, 0]], gold=[0] * 3, valid=[True, False, False]
    )
    assert baselines.best_column(records, make_pool(9, 5, 1)) == 0
