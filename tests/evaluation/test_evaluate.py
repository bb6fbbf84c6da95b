"""The whole comparison on a pool where the right answers are known, and its figure."""

import numpy as np
import pytest

from gradejax.evaluation import compare, outcome_from_decisions, save_figure


@pytest.fixture
def world(make_records, make_pool):
    """A1 knows family 0, A2 family 1, A3 a little of both, M0 nothing; x tells the family."""

    def make(n, seed, first):
        rng = np.random.default_rng(seed)
        family = np.arange(n) % 2
        knows = np.array([[0.9, 0.1, 0.4, 0.1], [0.1, 0.9, 0.4, 0.1]])[family]
        answers = np.where(rng.random((n, 4)) < knows, 0, rng.integers(1, 4, (n, 4)))
        x = np.stack([2 * family - 1 + rng.normal(0, 0.3, n), rng.normal(size=n)], 1)
        return make_records(answers, gold=[0] * n, family=family, ids=first + np.arange(n)), x

    train, x = make(200, 0, 0)
    test, x_test = make(120, 1, 1000)
    return train, x, test, x_test, make_pool(1_000_000, 1_000_000, 700_000, 100_000)


def grade_like(test, pool):
    """Asks the right specialist and says what it says, M0 always paid."""
    family = np.asarray(test.family)
    asked = np.eye(4, dtype=bool)[family]
    answer = np.asarray(test.answers)[np.arange(len(family)), family]
    return outcome_from_decisions(
        test, pool, answer, asked, np.full(len(family), 1), orchestrator_always=True
    )


def test_compare_has_every_system_and_sane_order(world):
    train, x, test, x_test, pool = world
    grade = grade_like(test, pool)
    results = compare(
        {"grade": [grade, grade, grade]},
        test,
        pool,
        ["arithmetic", "logic"],
        train=train,
        train_query=x,
        test_query=x_test,
        groups={"A": ("A1", "A2")},
        budget=1,
        replicates=500,
    )
    systems = results["systems"]
    assert set(systems) == {
        "grade",
        "single:A1",
        "single:A2",
        "single:A3",
        "single:M0",
        "best_single",
        "majority_vote",
        "random",
        "family_best",
        "oracle",
        "router_logistic",
        "router_knn",
        "self_consistency:A",
    }
    accuracy = {name: entry["accuracy"] for name, entry in systems.items()}
    assert accuracy["oracle"] >= accuracy["family_best"] >= accuracy["best_single"]
    assert accuracy["best_single"] == max(v for k, v in accuracy.items() if k.startswith("single:"))
    assert accuracy["grade"] == accuracy["family_best"]
    assert accuracy["router_logistic"] > 0.8 and accuracy["router_knn"] > 0.8
    assert systems["grade"]["active_params"] == 1_100_000
    assert systems["majority_vote"]["active_params"] == 2_700_000
    assert systems["self_consistency:A"]["agents"] == 1
    assert len(systems["grade"]["accuracy_by_seed"]) == 3
    assert results["differences"]["grade - family_best"]["ci95"] == [0, 0]
    assert "hindsight" in results["notes"]["best_single"]
    assert results["notes"]["pool_active_params"] == 2_800_000
    low, high = systems["random"]["ci95"]
    assert low < accuracy["random"] < high


def test_without_training_records_there_are_no_routers(world):
    _, _, test, x_test, pool = world
    results = compare({"grade": [grade_like(test, pool)]}, test, pool, ["a", "b"], replicates=50)
    assert not any(name.startswith("router") for name in results["systems"])
    with pytest.raises(ValueError, match="all three"):
        compare({}, test, pool, ["a", "b"], test_query=x_test)
    with pytest.raises(ValueError, match="belong to baselines"):
        compare({"oracle": [grade_like(test, pool)]}, test, pool, ["a", "b"])


def test_figure_is_written_and_shows_every_system(world, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    _, _, test, _, pool = world
    results = compare({"grade": [grade_like(test, pool)]}, test, pool, ["a", "b"], replicates=50)
    save_figure(results, tmp_path / "all.png")
    picture = image.imread(tmp_path / "all.png")
    assert picture.shape[0] > 600 and picture.shape[1] > 900
    red = (picture[..., 0] > 0.8) & (picture[..., 1] < 0.2) & (picture[..., 2] < 0.4)
    assert red.sum() > 100  # the star of the subject and its label
    without = {**results, "systems": {k: v for k, v in results["systems"].items() if k != "grade"}}
    save_figure(without, tmp_path / "without.png")
    picture = image.imread(tmp_path / "without.png")
    assert not ((picture[..., 0] > 0.8) & (picture[..., 1] < 0.2) & (picture[..., 2] < 0.4)).any()
    with pytest.raises(ValueError, match="nothing to draw"):
        save_figure(
            {"questions": 0, "systems": {"x": {"accuracy": None, "active_params": None}}},
            tmp_path / "no.png",
        )
