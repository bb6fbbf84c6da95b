import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from gradejax.evaluation import baselines, report
from gradejax.evaluation.statistics import difference_interval, mean_interval


@pytest.fixture
def two(make_records, make_pool):
    """Two systems on 30 questions of two families, and the pool."""
    rng = np.random.default_rng(0)
    answers = (rng.random((30, 3)) > [0.8, 0.5, 0.2]).astype(int)
    records = make_records(
        answers, gold=[0] * 30, family=[0] * 10 + [1] * 20, ids=rng.permutation(30)
    )
    pool = make_pool(1000, 400, 10)
    return (
        records,
        pool,
        baselines.single(records, pool, "A1"),
        baselines.single(records, pool, "A2"),
    )


def build(grade, other, **options):
    return report.build_results(
        {"grade": [grade], "best_single": [other]}, ["easy", "hard"], **options
    )


def test_schema_and_numbers(two):
    _, _, a1, a2 = two
    results = build(a1, a2, replicates=2000)
    assert results["questions"] == 30
    entry = results["systems"]["grade"]
    assert set(entry) == {
        "accuracy",
        "ci95",
        "accuracy_by_seed",
        "agents",
        "depth",
        "tokens",
        "active_params",
        "by_family",
        "coverage",
    }
    assert entry["accuracy"] == pytest.approx(a1.correct.mean())
    assert entry["accuracy_by_seed"] == [pytest.approx(a1.correct.mean())]
    assert (entry["agents"], entry["depth"], entry["tokens"], entry["active_params"]) == (
        1,
        1,
        10,
        1000,
    )
    assert entry["by_family"]["hard"]["questions"] == 20
    assert entry["by_family"]["hard"]["right"] == a1.correct[10:].sum()
    order = np.argsort(a1.ids)
    expected = mean_interval(a1.correct[order], replicates=2000)
    assert entry["ci95"] == pytest.approx([expected.low, expected.high])
    paired = difference_interval(a1.correct[order], a2.correct[order], replicates=2000)
    said = results["differences"]["grade - best_single"]
    assert (said["difference"], *said["ci95"]) == pytest.approx(paired[:3])
    assert said["difference"] > 0  # the subject comes first


def test_systems_are_paired_by_id_not_by_row(two):
    _, _, a1, a2 = two
    back = dataclasses.replace(
        a2, **{f.name: getattr(a2, f.name)[::-1] for f in dataclasses.fields(a2)}
    )
    assert build(a1, a2, replicates=300) == build(a1, back, replicates=300)


def test_padding_is_inert(two, padded):
    records, pool, a1, a2 = two
    long = [baselines.single(padded(records), pool, name) for name in ("A1", "A2")]
    assert build(*long, replicates=300) == build(a1, a2, replicates=300)


def test_repeated_and_differing_questions_are_refused(two):
    _, _, a1, a2 = two
    twice = dataclasses.replace(a1, ids=np.where(a1.ids == 3, 4, a1.ids))
    with pytest.raises(ValueError, match="question id 4 occurs more than once"):
        build(twice, a2)
    fewer = dataclasses.replace(a2, valid=a2.ids != 5, covered=a2.ids != 5)
    with pytest.raises(ValueError, match="'best_single' was not evaluated on the same questions"):
        build(a1, fewer)


def test_missing_shows_as_coverage_not_as_wrong(two):
    _, _, a1, a2 = two
    gone = a1.correct == 0
    partial = dataclasses.replace(a1, covered=a1.covered & ~gone)
    results = build(partial, a2, replicates=300)
    entry = results["systems"]["grade"]
    assert entry["accuracy"] == 1.0 and entry["coverage"] == pytest.approx(1 - gone.mean())
    assert entry["active_params"] == 1000  # per covered question
    assert results["differences"]["grade - best_single"]["questions"] == (~gone).sum()
    assert results["differences"]["grade - best_single"]["difference"] == pytest.approx(
        (1 - a2.correct[~gone]).mean()
    )


def test_nothing_covered_is_null(two, tmp_path):
    _, _, a1, a2 = two
    nothing = dataclasses.replace(a1, covered=np.zeros(30, bool))
    results = build(nothing, a2, replicates=50)
    entry = results["systems"]["grade"]
    assert entry["accuracy"] is None and entry["tokens"] is None and entry["coverage"] == 0
    assert entry["ci95"] == [None, None]
    report.write_json(results, tmp_path / "results.json")
    report.print_results(results, Console(width=160, quiet=True))


def test_seeds_are_averaged_per_question(two):
    _, _, a1, a2 = two
    results = report.build_results(
        {"grade": [a1, a2, a1], "best_single": [a2]}, ["easy", "hard"], replicates=2000
    )
    entry = results["systems"]["grade"]
    mean = (2 * a1.correct + a2.correct) / 3
    assert entry["accuracy"] == pytest.approx(mean.mean())
    assert entry["accuracy_by_seed"] == pytest.approx(
        [a1.correct.mean(), a2.correct.mean(), a1.correct.mean()]
    )
    assert entry["active_params"] == pytest.approx(800)
    # Bootstrapping the 90 rows of three seeds as if they were 90 questions would narrow it by √3.
    order = np.argsort(a1.ids)
    expected = mean_interval(mean[order], replicates=2000)
    assert entry["ci95"] == pytest.approx([expected.low, expected.high])
    assert entry["by_family"]["easy"]["questions"] == 10


def test_interval_of_random_holds_the_chance_of_the_draw(make_records, make_pool):
    # One of two experts is right on every question: the expectation is .5 everywhere, with no
    # spread at all over questions, but one draw over 100 questions has a standard error of .05.
    records, pool = make_records([[0, 1, 1]] * 100, gold=[0] * 100), make_pool(5, 5, 1)
    expected = baselines.random_expected(records, pool)
    draws = [baselines.random_sampled(records, pool, seed) for seed in range(200)]
    results = report.build_results(
        {"random": [expected]}, ["all"], ci_draws={"random": draws}, replicates=4000
    )
    entry = results["systems"]["random"]
    assert entry["accuracy"] == 0.5 and len(entry["accuracy_by_seed"]) == 3
    # Variance of draw and of resampling add: standard error √(2 · .25/100) = .0707; 1.96 of it is
    # .139.
    assert entry["ci95"] == pytest.approx([0.5 - 0.139, 0.5 + 0.139], abs=0.025)
    plain = report.build_results({"random": [expected]}, ["all"], replicates=100)
    assert plain["systems"]["random"]["ci95"] == [0.5, 0.5]


def test_json_is_sorted_and_atomic(two, tmp_path, monkeypatch):
    _, _, a1, a2 = two
    results, path = build(a1, a2, replicates=100), tmp_path / "results.json"
    report.write_json(results, path)
    text = path.read_text()
    assert json.loads(text) == results
    assert text == json.dumps(results, sort_keys=True, indent=2) + "\n"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        report.write_json({"questions": 0}, path)
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_table_says_what_the_results_say(two):
    _, _, a1, a2 = two
    console = Console(width=200, record=True, file=io.StringIO())
    report.print_results(build(a1, a2, replicates=300), console)
    text = console.export_text()
    assert (
        f"{100 * a1.correct.mean():.1f}" in text and "grade - best_single" in text and "1K" in text
    )
    assert "coverage" not in text  # everything is covered: the column would only take room


def test_only_families_of_these_questions_get_a_column(two):
    _, _, a1, a2 = two
    results = report.build_results(
        {"grade": [a1], "best_single": [a2]}, ["easy", "hard", "of training only"], replicates=50
    )
    assert report.shown_families(results) == ["easy", "hard"]
    console = Console(width=200, record=True, file=io.StringIO())
    report.print_results(results, console)
    assert "n/a" not in console.export_text()


def test_many_families_are_left_to_the_file(two):
    _, _, a1, a2 = two
    many = dataclasses.replace(a1, family=np.arange(30) % 12)
    names = [f"f{i}" for i in range(12)]
    results = report.build_results({"grade": [many]}, names, replicates=50)
    assert report.shown_families(results) == []
    assert report.sentences(results) == ["accuracy by each of the 12 families is in results.json"]


def test_with_options_the_table_says_that_the_oracle_can_be_exceeded(two):
    _, _, a1, a2 = two
    said = "grade may choose one that no expert named"
    for notes, systems, there in (
        ({"options": True}, {"grade": [a1], "oracle": [a2]}, True),
        ({"options": False}, {"grade": [a1], "oracle": [a2]}, False),
        ({"options": True}, {"grade": [a1]}, False),
    ):
        results = report.build_results(systems, ["easy", "hard"], notes=notes, replicates=50)
        console = Console(width=200, record=True, file=io.StringIO())
        report.print_results(results, console)
        assert (said in console.export_text()) is there
