"""Questions of a run: one file cut in two, benchmarks by name, what does not fit is counted."""

import json

import pytest

from experiments.config import ConfigError
from experiments.questions import TaskSettings, choose, questions_of
from gradejax.systems.description import task_of
from gradejax.tasks.base import Example
from gradejax.tasks.exemplars import EXEMPLARS
from gradejax.tasks.splits import check_disjoint

FILES = [
    "aime2025.test", "arc_challenge.test", "arc_challenge.train", "arc_challenge.validation",
    "bbh_navigate.test", "gsm8k.test", "gsm8k.train", "humaneval.test", "math500.test",
    "mmlu_abstract_algebra.dev", "mmlu_abstract_algebra.test", "mmlu_college_physics.dev",
    "mmlu_college_physics.test", "mmlu_pro.test", "mmlu_pro.validation",
    "mmlu_professional_medicine.dev", "mmlu_professional_medicine.test", "mmlu_redux.test",
    "scicode.validation",
]  # fmt: skip
KINDS = {"humaneval": "code", "aime2025": "integer", "math500": "math", "gsm8k": "number",
         "scicode": "text"}  # fmt: skip


def settings(**changes):
    plain = {
        "name": "jsonl", "kind": "", "format": "", "train_file": "", "heldout_file": "",
        "train_questions": 20, "heldout_questions": 10,
    }  # fmt: skip
    return TaskSettings(**plain | changes)


@pytest.fixture
def gsm8k(tmp_path, monkeypatch):
    """A folder with a small GSM8K; two questions of its training set are in its test set."""
    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    for split, low, high in (("train", 0, 60), ("test", 58, 80)):
        rows = [
            {"question": f"What is {i} + 1?", "answer": f"add #### {i + 1}"}
            for i in range(low, high)
        ]
        path = tmp_path / f"gsm8k.{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("stem", FILES)
def test_any_question_file_is_cut_in_two(shared, stem):
    found = questions_of(settings(path=f"{shared}/data/{stem}.jsonl"))
    assert found.train and found.heldout
    check_disjoint({"train": found.train, "heldout": found.heldout})
    total = len(found.train) + len(found.heldout)
    assert total < 100 or 0.3 < len(found.heldout) / total < 0.5
    task = task_of(json.loads(json.dumps(found.entry)))  # as a checkpoint keeps it
    example = found.train[0]
    kind = KINDS.get(stem.split(".")[0], "choice")
    assert (example.choices is not None) == (kind == "choice")
    assert task.format_slot(example)
    for reply in ("", "???", "\u2028\ud7ff ∑ 答案", "ANSWER:", "I", "A" * 5000):
        task.judge(reply, "stop", example)
    if kind not in ("code", "text"):
        judged = task.judge(f"ANSWER: {example.answer}", "stop", example)
        assert judged.outcome.value == "correct"


def test_copies_within_a_file_are_left_out_and_said(shared):
    found = questions_of(settings(path=f"{shared}/data/mmlu_pro.test.jsonl"))
    assert len(found.train) + len(found.heldout) == 12032 - 158
    assert "left out as copies of other items: 158 (" in found.notes[-1]


def test_a_run_takes_the_first_that_fit_and_says_the_rest():
    rows = [Example(f"q{i}", "?" * length, None, "1") for i, length in
            enumerate([100, 512, 513, 700, 5])]  # fmt: skip
    # fault F02: lengths 100 and 512 are kept, 513 and 700 dropped, nothing is cut
    kept, notes = choose(rows, 0, lambda e: len(e.question) <= 512, "training")
    assert [e.id for e in kept] == ["q0", "q1", "q4"]
    assert [len(e.question) for e in kept] == [100, 512, 5]
    assert notes == (
        "of 5 training questions these do not fit the orchestrator's context and are left out: "
        "2 (q2, q3)",
    )
    kept, notes = choose(rows, 2, lambda e: len(e.question) <= 512, "training")
    assert [e.id for e in kept] == ["q0", "q1"] and notes == ()
    with pytest.raises(ConfigError, match="no held-out question fits the pool: of 5 held-out"):
        choose(rows, 0, lambda e: False, "held-out")


def test_a_benchmark_by_name(gsm8k):
    found = questions_of(settings(name="gsm8k", path=str(gsm8k)))
    assert (len(found.train), len(found.heldout)) == (58, 22)
    assert found.entry == {"name": "gsm8k", "benchmark": "gsm8k"}
    assert any("left out as copies: 2 (gsm8k-train-58, gsm8k-train-59)" in n for n in found.notes)
    assert "60 rows, published are 7473" in found.notes
    check_disjoint({"train": found.train, "heldout": found.heldout})


def test_a_development_split_leaves_the_test_set_alone(gsm8k):
    found = questions_of(settings(name="gsm8k", path=str(gsm8k), heldout_split="dev"))
    ids = {e.id for e in (*found.train, *found.heldout)}
    assert all(i.startswith("gsm8k-train-") for i in ids) and len(ids) == 60


def test_shots_and_shuffled_options(gsm8k, shared):
    found = questions_of(settings(name="gsm8k", path=str(gsm8k), shots=3))
    assert all(e.meta[EXEMPLARS].count("ANSWER: ") == 3 for e in found.heldout)
    path = f"{shared}/data/arc_challenge.test.jsonl"
    plain = questions_of(settings(path=path))
    mixed = questions_of(settings(path=path, shuffle_seed=0))
    assert [e.id for e in plain.train] == [e.id for e in mixed.train]
    assert sum(a.answer != b.answer for a, b in zip(plain.train, mixed.train, strict=True)) > 300
    assert all("order" in e.meta for e in mixed.train)


def test_a_test_set_is_cut_only_when_told_to(shared):
    folder = f"{shared}/data"
    with pytest.raises(ConfigError, match="aime2025 has no training split.*split_test=True"):
        questions_of(settings(name="aime2025", path=folder))
    found = questions_of(settings(name="aime2025", path=folder, split_test=True))
    assert len(found.train) + len(found.heldout) == 30
    assert "figures on a part of a test set are not its published figures" in found.notes


def test_generators_by_name():
    found = questions_of(settings(name="reasoning_gym", subset="gcd+countdown"))
    assert {e.family for e in found.train} == {"gcd", "countdown"}
    task = task_of(found.entry)
    e = found.train[0]
    assert task.judge(f"ANSWER: {e.answer}", "stop", e).outcome.value == "correct"


def test_a_format_of_ones_own(shared):
    found = questions_of(settings(path=f"{shared}/data/gsm8k.test.jsonl", format="open"))
    assert task_of(found.entry).format_slot(found.train[0]) == (
        "Give only the final answer after ANSWER:."
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, "config.task.name=jsonl needs config.task.path"),
        ({"path": "nowhere.jsonl"}, "no such file: nowhere.jsonl"),
        ({"name": "mine"}, "needs task.train_file and task.heldout_file.*gsm8k, mmlu_pro"),
        ({"name": "mine", "train_file": "a.jsonl"}, "needs both task.train_file and"),
        ({"name": "gsm8k", "train_split": "test", "heldout_split": "test"}, "both 'test'"),
        ({"name": "reasoning_gym", "subset": "nosuch"}, "no generator 'nosuch'"),
        ({"name": "reasoning_gym", "subset": "gcd", "shots": 2}, "shots is for benchmarks"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        questions_of(settings(**changes))


@pytest.mark.parametrize("changes", [{"heldout_share": 1.0}, {"shots": -1}, {"format": "long"}])
def test_settings_out_of_range(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        settings(**changes)


def test_a_file_of_one_question_cannot_be_cut(tmp_path):
    path = tmp_path / "one.jsonl"
    row = {"id": "a", "question": "?", "choices": None, "answer": "1"}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"1 question\(s\) cannot be split in two"):
        questions_of(settings(path=str(path)))
