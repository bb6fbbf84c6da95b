import numpy as np
import pytest

from gradejax.evaluation import metrics
from gradejax.evaluation.baselines import oracle, single


def test_accuracy_does_not_depend_on_the_number_of_devices(make_records, make_pool):
    # Five items on two devices: the sixth row repeats the first (or last) item. Counted, it gives
    # 4/6 (or 3/6), and a mean of the devices' means gives 2/3; the right answer is 3/5 of 5.
    for repeat, fault in ((1, 4 / 6), (0, 3 / 6)):
        right = np.array([1, 0, 1, 1, 0, repeat])
        records = make_records(
            np.stack([1 - right, right], 1),
            gold=[0] * 6,
            valid=[True] * 5 + [False],
            ids=[0, 1, 2, 3, 4, 0],
        )
        out = single(records, make_pool(5, 1), "A1")
        parts = [
            metrics.SumCount(out.correct[s].sum(), out.covered[s].sum())
            for s in (slice(0, 3), slice(3, 6))
        ]
        total = metrics.SumCount(sum(p.sum for p in parts), sum(p.count for p in parts))
        assert total.mean() == pytest.approx(0.6) and total.count == 5
        assert metrics.accuracy(out) == (3.0, 5.0)
        assert right.mean() == pytest.approx(fault)


def test_by_family_sums_to_the_whole_and_leaves_missing_out(make_records, make_pool):
    records = make_records(
        [[0, 0], [1, 0], [0, 0], [0, 0]], gold=[0] * 4, family=[0, 0, 2, 2], missing=[(3, 0)]
    )
    out = single(records, make_pool(5, 1), "A1")
    by_family = metrics.accuracy_by_family(out, 3)
    np.testing.assert_array_equal(by_family.sum, [1, 0, 1])
    np.testing.assert_array_equal(by_family.count, [2, 0, 1])
    np.testing.assert_array_equal(by_family.mean(), [0.5, np.nan, 1.0])
    assert metrics.accuracy(out) == (by_family.sum.sum(), by_family.count.sum())
    assert metrics.coverage(out) == (3, 4)
    with pytest.raises(ValueError, match="expected 0 to 1, got 0 to 2"):
        metrics.accuracy_by_family(out, 2)


def test_four_outcomes_are_disjoint_and_complete(make_records):
    records = make_records(
        [[0, 1], [1, -1], [-1, 0], [0, 0], [0, 0]],
        gold=[0, 0, -1, 0, 0],
        missing=[(3, 0)],
        valid=[True] * 4 + [False],
    )
    counts = metrics.outcome_counts(records)
    np.testing.assert_array_equal(counts["right"], [1, 1])
    np.testing.assert_array_equal(counts["wrong"], [1, 2])
    np.testing.assert_array_equal(counts["no_answer"], [1, 1])
    np.testing.assert_array_equal(counts["missing"], [1, 0])
    np.testing.assert_array_equal(sum(counts.values()), 4)


def test_oracle_gap(make_records, make_pool):
    records, pool = (
        make_records([[0, 1], [1, 0], [1, 1], [0, 0]], gold=[0] * 4, missing=[(3, 0)]),
        make_pool(5, 1),
    )
    gap = metrics.oracle_gap(oracle(records, pool), single(records, pool, "A1"))
    assert gap == (1, 3)  # only question 1; question 3 is missing for A1, not lost by it
    with pytest.raises(ValueError, match="same questions"):
        metrics.oracle_gap(
            oracle(records, pool), single(records.replace(ids=records.ids + 1), pool, "A1")
        )


def test_usage_counts_valid_rows_only():
    rows = np.array([True, True, True, False])
    np.testing.assert_allclose(metrics.usage([0, 2, 2, 1], 3, rows).mean(), [1 / 3, 0, 2 / 3])
    members = metrics.member_usage([[1, 0], [1, 1], [1, 0], [0, 1]], rows)
    np.testing.assert_allclose(members.mean(), [1, 1 / 3])
    with pytest.raises(ValueError, match="expected 0 to 1, got 2"):
        metrics.usage([0, 2], 2, np.array([True, True]))


def test_entropies_by_hand():
    np.testing.assert_allclose(
        metrics.categorical_entropy([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]]),
        [np.log(4), 0, np.log(2)],
    )
    np.testing.assert_allclose(
        metrics.bernoulli_entropy([0.5, 0.0, 1.0, 0.25]), [np.log(2), 0, 0, 0.5623351446], atol=1e-9
    )


def test_collapse_is_said_and_health_is_silent():
    healthy = {
        "agent_use": {"A1": 0.4, "A2": 0.02},
        "depth_use": [0.2, 0.3, 0.5],
        "entropies": {"depth": (0.6, 1.1)},
    }
    assert metrics.detect_collapse(**healthy) == []
    said = metrics.detect_collapse(
        agent_use={"A1": 0.9, "A2": 0.0},
        depth_use=[0.0, 1.0, 0.0],
        entropies={"prune": (0.001, 0.69)},
    )
    assert len(said) == 3
    assert "agent A2" in said[0] and "depth 1" in said[1] and "prune" in said[2]
