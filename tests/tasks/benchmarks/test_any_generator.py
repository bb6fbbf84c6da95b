"""Any reasoning-gym generator and composite: own scorer, disjoint seeds."""

import json

import pytest

from gradejax.tasks.base import Outcome
from gradejax.tasks.benchmarks.reasoning_gym import (
    HELDOUT_OFFSET,
    AnyReasoningGymTask,
    Generated,
    draw,
    generated_of,
    score,
    train_and_heldout,
)
from gradejax.tasks.splits import check_disjoint, check_disjoint_seeds, item_key

# Golds of these are None: there is only the scorer.
WITHOUT_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def generators():
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite"})


def test_every_generator_grades_its_own_golds_from_a_reply():
    wrong = {}
    for name in generators():
        for example in draw(Generated(name), 5, 2):
            assert example.family == name and example.question
            json.dumps(dict(example.meta))  # it may be kept in a file
            if name in WITHOUT_GOLD:
                assert example.answer == ""
                continue
            reply = f"So it must be.\nANSWER: {example.answer}"
            judged = AnyReasoningGymTask.judge(reply, "stop", example)
            if judged.outcome is not Outcome.RIGHT:
                wrong.setdefault(name, []).append((example.answer, judged.answer))
            nothing = AnyReasoningGymTask.judge("", "stop", example)
            assert nothing.outcome is Outcome.NO_ANSWER
    assert wrong == {}


def test_a_scorer_that_reads_free_text_decides():
    # countdown: any expression of the numbers that gives the target
    example = draw(Generated("countdown"), 0, 1)[0]
    meta = example.meta["entry"]["metadata"]
    assert score(str(example.answer), example) == 1.0
    turned = f"({example.answer})"
    assert turned != example.answer and score(turned, example) == 1.0
    assert score(str(meta["target"]), example) < 1.0
    assert score(None, example) == 0.0 and score("((((", example) < 1.0


def test_grids_survive_json():
    example = draw(Generated("rearc"), 1, 1)[0]
    assert score(example.answer, example) == 1.0
    # the fault: lists where the scorer compares tuples score .05
    from gradejax.tasks.benchmarks import reasoning_gym as any_lib

    raw = any_lib._scorer("rearc").score_answer(example.answer, dict(example.meta["entry"]))
    assert raw == pytest.approx(0.05)


def test_a_composite_mixes_and_grades_by_source(tmp_path):
    parts = [{"name": "gcd", "weight": 3}, {"name": "countdown", "weight": 1, "config": {}}]
    file = tmp_path / "mix.yaml"
    file.write_text(json.dumps({"datasets": parts}))
    for generated in (generated_of(str(file)), generated_of("gcd + countdown")):
        assert generated.label == "gcd+countdown"
        examples = draw(generated, 3, 40)
        families = [e.family for e in examples]
        assert set(families) == {"gcd", "countdown"}
        assert all(score(e.answer, e) == 1.0 for e in examples)
    assert draw(generated_of(str(file)), 3, 40) == draw(generated_of(str(file)), 3, 40)
    assert [e.family for e in draw(generated_of(str(file)), 3, 40)].count("gcd") > 20


def test_training_and_heldout_share_no_seed_and_no_text():
    train, heldout, notes = train_and_heldout(Generated("gcd"), train=60, heldout=40)
    check_disjoint({"train": train, "heldout": heldout})
    assert (len(train), len(heldout), notes) == (60, 40, ())
    assert train[0].id == "gcd/0.0" and heldout[0].id == f"gcd/{HELDOUT_OFFSET}.0"
    # the fault of F07: the validation seed lies in the training range
    with pytest.raises(ValueError, match="disjoint seeds, got 123"):
        check_disjoint_seeds({"train": range(0, 100_000), "heldout": [123]})
    beside = draw(Generated("gcd"), 1, 60)
    assert {item_key(e) for e in beside} & {item_key(e) for e in train}


def test_copies_of_a_small_generator_are_dropped_and_said():
    small = Generated("coin_flip", {"min_trials": 3, "max_trials": 3})
    train, heldout, notes = train_and_heldout(small, train=300, heldout=60)
    check_disjoint({"train": train, "heldout": heldout})
    assert len(train) < 300 and len(train) == len({item_key(e) for e in train})
    assert any("training items repeat another or a held-out one" in note for note in notes)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: generated_of("countdwn"), "no generator 'countdwn'; choose from countdown"),
        (lambda: Generated("gcd", {"size": 3}), "seed and size are set by the split"),
        (lambda: Generated("gcd", {"mn": 3}), "generator 'gcd' refuses {'mn': 3}"),
        (lambda: Generated("composite"), "expected a composite to have 'datasets'"),
        (lambda: generated_of("gcd+gcd"), "the parts of a composite to differ"),
        (lambda: generated_of("nowhere.yaml"), "nowhere.yaml: expected a composite's YAML"),
        (lambda: draw(Generated("gcd"), 0, 0), "expected n >= 1"),
        (
            lambda: Generated("composite", {"datasets": [{"name": "gcd", "weight": 0}]}),
            "expected a weight above 0",
        ),
        (
            lambda: Generated("composite", {"datasets": [{"name": "gcd", "wait": 1}]}),
            r"unknown \['wait'\]; choose from name, weight, config",
        ),
        (lambda: train_and_heldout(Generated("gcd"), train=1, heldout=1, seed=-1), "0 <= seed"),
    ],
)
def test_errors_name_the_choices(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_replies():
    example = draw(Generated("gcd"), 0, 1)[0]
    read = lambda text: AnyReasoningGymTask.extract(text, example)  # noqa: E731
    assert read("ANSWER: 4\nthank you") == "4"
    assert read("Respond with ANSWER: <value>.") is None
    assert read("<think>ANSWER: 4") is None
    assert read("The answer is 12.") == "12"
