"""The main job on a file of one's own: ten options, unicode, and questions that do not fit."""

import json
import os
import pathlib

import pytest

import gradejax
from experiments import run

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    "--config.seeds=0,", "--config.task.train_questions=6", "--config.task.heldout_questions=4",
    "--config.train.steps=1", "--config.train.batch_size=4", "--config.grade.d=8",
    "--config.grade.group_size=4", "--config.grade.memory_slots=8",
    "--config.evaluation.replicates=50", "--config.evaluation.batch_size=4",
    "--config.store.batch_size=8",
    *(f"--config.pool.agents.{a}.max_new_tokens=16" for a in ("A1", "A2", "A3", "B1", "B2", "B3")),
]  # fmt: skip


def write(path):
    """Thirty questions of 3 to 10 options, every fifth far too long for the tiny models."""
    rows = []
    for i in range(30):
        stem = f"Frage {i}: ∑ 答案 \u2028 größer?" + " und so weiter" * (400 if i % 5 == 0 else 0)
        choices = [f"option {j} ≤ {i}" for j in range(3 + i % 8)]
        rows.append({"id": i, "question": stem, "choices": choices, "answer": "ABC"[i % 3]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_nothing_breaks_and_what_is_left_out_is_said(tmp_path, capsys):
    path = write(tmp_path / "mine.jsonl")
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        status = run.main([
            f"--config={ROOT / 'experiments/configs/grade_tiny.py'}",
            f"--workdir={tmp_path / 'run'}", f"--config.store.path={tmp_path / 'store'}",
            "--config.task.name=jsonl", f"--config.task.path={path}", *SMALL,
        ])  # fmt: skip
    finally:
        os.chdir(here)
    out = capsys.readouterr().out
    assert status == 0, out
    assert "do not fit the orchestrator's context and are left out: " in out
    assert "config.grade.anchors is 64; all 6 training questions are anchors" in out
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["questions"] == 4
    assert 0 <= results["systems"]["grade"]["accuracy"] <= 1
    assert "grade may choose one that no expert named, so it can exceed the oracle" in out
    # a restored system takes its questions with their options only
    system = gradejax.restore(tmp_path / "run")
    (answer,) = system.answer([{"question": "Which?", "choices": ["one", "two", "three"]}])
    assert answer.text in "ABC"
    with pytest.raises(ValueError, match="chooses among options"):
        system.answer(["Which?"])
    # the run can be restored by itself: its task, its anchors, its questions' kinds
    anchors = next((tmp_path / "run").glob("anchors*.json"))
    assert len(json.loads(anchors.read_text())) == 6
