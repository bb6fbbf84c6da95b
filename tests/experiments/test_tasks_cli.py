"""python -m experiments.tasks: one prompt and gold of each, and a word for what is missing."""

import json

import pytest

from experiments import tasks
from gradejax.tasks.benchmarks import BENCHMARKS

GPQA_ROW = {
    "Question": "SECRET question", "Correct Answer": "SECRET right", "Record ID": "recSECRET",
    "Incorrect Answer 1": "SECRET 1", "Incorrect Answer 2": "SECRET 2",
    "Incorrect Answer 3": "SECRET 3",
}  # fmt: skip


def said(capsys, *args):
    status = tasks.main(list(args))
    return status, capsys.readouterr()


def test_every_task_of_the_shared_data(shared, capsys):
    status, out = said(capsys, "--offline", "--folder", f"{shared}/data")
    assert status == 0
    blocks = {b.split("\n")[0]: b for b in out.out.split("== ")[1:]}
    assert set(blocks) == {*BENCHMARKS, "reasoning_gym"}
    for name, block in blocks.items():
        if name in ("gpqa", "math"):
            assert "not at hand: " in block and "is not in" in block
        else:
            assert "  user: Question: " in block and "  gold: " in block, name
    assert "11 of 13 tasks are at hand" in out.out


def test_nothing_at_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    status, out = said(capsys, "--offline")
    assert status == 0
    assert "not at hand: gsm8k.train: no folder was given and GRADEJAX_DATA is not set" in out.out
    assert "1 of 13 tasks are at hand" in out.out  # reasoning_gym needs none


def test_items_of_gpqa_are_never_shown(tmp_path, capsys):
    (tmp_path / "gpqa_diamond.test.jsonl").write_text(json.dumps(GPQA_ROW) + "\n")
    status, out = said(capsys, "gpqa", "--offline", "--count", "--folder", str(tmp_path))
    assert status == 0 and "SECRET" not in out.out + out.err
    assert "not to be shown" in out.out and "Choose one option (A--D)" in out.out
    assert "1 rows, published are 198" in out.out


def test_settings(shared, capsys):
    args = ("--offline", "--folder", f"{shared}/data")
    _, out = said(capsys, "mmlu:college_physics", "--shots", "2", "--count", *args)
    assert "user: Solve the problem with step-by-step reasoning" in out.out
    assert "102 examples in test" in out.out
    _, out = said(capsys, "arc_challenge", "--shuffle-seed", "1", *args)
    assert "order of the options: [" in out.out
    _, out = said(capsys, "reasoning_gym:countdown", "--offline")
    assert "user: Question: " in out.out and "gold: " in out.out
    _, out = said(capsys, "humaneval", "--shots", "1", *args)
    assert "no worked examples: it has a test set only" in out.out


@pytest.mark.parametrize(
    "name, message",
    [("gsm", "no task 'gsm'; choose from gsm8k"), ("mmlu:law", "mmlu has no subset 'law'"),
     ("reasoning_gym:nosuch", "no generator 'nosuch'")],
)  # fmt: skip
def test_wrong_names(name, message, capsys):
    status, out = said(capsys, name, "--offline")
    assert status == 2 and message in out.err
