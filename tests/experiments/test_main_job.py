"""The main job on the shipped tiny experts, small: what it writes, and that it can be trusted."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments import run
from gradejax.training.checkpoint import Checkpoints
from gradejax.training.logging import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "experiments/configs/grade_tiny.py"
SMALL = [
    "--config.seeds=0,", "--config.task.train_questions=48", "--config.task.heldout_questions=24",
    "--config.train.batch_size=16", "--config.grade.d=8", "--config.grade.anchors=8",
    "--config.grade.memory_slots=16", "--config.evaluation.replicates=200",
    "--config.checkpoint.save_every=2", "--config.store.batch_size=64",
]  # fmt: skip


def arguments(workdir, store, *extra):
    return [f"--config={CONFIG}", f"--workdir={workdir}", f"--config.store.path={store}", *SMALL,
            *extra]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run of 6 steps: (workdir, store)."""
    base = tmp_path_factory.mktemp("main_job")
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        assert run.main(arguments(base / "run", base / "store", "--config.train.steps=6")) == 0
    finally:
        os.chdir(here)
    return base / "run", base / "store"


def checkpoint(workdir):
    """Newest state as a flat dict of arrays, without a target."""
    from gradejax.training.restore import restore

    return restore(workdir)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_results_have_the_stated_schema(done):
    results = json.loads((done[0] / "results.json").read_text())
    assert results["questions"] == 24
    systems = results["systems"]
    singles = {f"single:{a}" for a in ("A1", "A2", "A3", "B1", "B2", "B3", "M0")}
    wanted = {"grade", "majority_vote", "random", "family_best", "router_logistic", "router_knn"}
    wanted |= {"oracle"} | singles
    assert wanted <= set(systems)
    for entry in systems.values():
        low, high = entry["ci95"]
        assert low <= entry["accuracy"] <= high
        for key in ("accuracy_by_seed", "agents", "depth", "tokens", "active_params"):
            assert key in entry
    assert systems["oracle"]["accuracy"] >= systems["family_best"]["accuracy"]
    assert (done[0] / "accuracy_vs_params.png").read_bytes()[:4] == b"\x89PNG"


def test_every_step_is_logged_with_what_the_issue_names(done):
    rows = read_metrics(done[0] / "metrics.jsonl")
    assert [r["step"] for r in rows] == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "reward", "reward/correctness", "reward/system", "reward/agents",
                 "reward/cost", "accuracy", "entropy/depth", "entropy/assignment", "entropy/read",
                 "entropy/prune", "agents", "depth", "usage/A1", "tokens", "clip_fraction",
                 "loss/kl", "advantage/from_unvarying"):  # fmt: skip
        assert all(np.isfinite(r[name]) for r in rows), name
    assert list((done[0] / "events").iterdir())


def test_a_second_run_calls_no_model_and_changes_nothing(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    workdir, store = done
    args = arguments(tmp_path / "again", store, "--config.train.steps=6")
    assert run.main(args) == 0
    said = capsys.readouterr().out
    assert "training: 48 questions to 7 seats" in said
    assert "held-out: 24 questions to 7 seats" in said
    assert "training: 336 of 336 calls" in said and "held-out: 168 of 168 calls" in said
    # what was asked is what was read and what was made
    assert "504 different calls: 504 read from the feature store" in said
    assert "0 language-model calls made" in said and "()" not in said
    same(checkpoint(tmp_path / "again").params, checkpoint(workdir).params)
    assert read_metrics(tmp_path / "again/metrics.jsonl") == read_metrics(workdir / "metrics.jsonl")
    one, two = (json.loads((w / "results.json").read_text()) for w in (workdir, tmp_path / "again"))
    assert one["systems"] == two["systems"]


def test_evaluate_only_gives_the_same_figures(done, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    workdir, store = done
    before = json.loads((workdir / "results.json").read_text())
    args = arguments(workdir, store, "--config.train.steps=6", "--config.mode=evaluate")
    assert run.main(args) == 0
    assert json.loads((workdir / "results.json").read_text())["systems"] == before["systems"]
    last = capsys.readouterr().out.rsplit("asking ", 1)[1]
    assert "training" not in last and "restoring" in last


def test_more_steps_go_on_exactly(done, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    store = done[1]
    workdir = tmp_path / "parts"
    assert run.main(arguments(workdir, store, "--config.train.steps=3")) == 0
    assert run.main(arguments(workdir, store, "--config.train.steps=6")) == 0
    same(checkpoint(workdir).params, checkpoint(done[0]).params)
    same(checkpoint(workdir).memory, checkpoint(done[0]).memory)
    assert read_metrics(workdir / "metrics.jsonl") == read_metrics(done[0] / "metrics.jsonl")


def test_a_killed_run_goes_on_exactly(done, tmp_path):
    """SIGKILL in the middle of training; the same command ends as an unbroken run."""
    workdir, store = tmp_path / "killed", done[1]
    # A long run, killed at step 4 or later; then asked for the 6 steps of the unbroken one.
    command = [sys.executable, "-m", "experiments.run", *arguments(workdir, store)]
    child = subprocess.Popen([*command, "--config.train.steps=100000"], cwd=ROOT,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and child.poll() is None:
        if (workdir / "checkpoints" / "4").exists() or (workdir / "checkpoints" / "6").exists():
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with Checkpoints(workdir / "checkpoints", read_only=True) as kept:
        reached = kept.latest_step()
    assert reached is not None
    # Whatever it had reached, its own unbroken twin is compared at the next even step.
    goal = reached + 2
    twin = tmp_path / "twin"
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        assert run.main(arguments(workdir, store, f"--config.train.steps={goal}")) == 0
        assert run.main(arguments(twin, store, f"--config.train.steps={goal}")) == 0
    finally:
        os.chdir(here)
    same(checkpoint(workdir).params, checkpoint(twin).params)
    assert read_metrics(workdir / "metrics.jsonl") == read_metrics(twin / "metrics.jsonl")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--config.grade.d=16"], ["grade.d", "8 there", "16 now"]),
        (["--config.grade.dd=16"], ["unknown config key", "grade.d"]),
        (["--config.train.steps=ten"], ["train.steps", "ten"]),
        (["--config.pool.agents.A1.manager=nobody"], ["nobody", "quantitative"]),
        (["--config.pool.agents.A1.model=checkpoints/none"], ["checkpoints/none", "arithmetic"]),
        (["--config.mode=walk"], ["walk", "evaluate"]),
        (["--config.grade.baseline=best"], ["best", "group_mean"]),
        (["--workdri=x"], ["--workdri", "--workdir"]),
    ],
)
def test_user_errors_name_what_was_expected(done, extra, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run.main(arguments(*done, "--config.train.steps=6", *extra)) == 1
    said = " ".join(capsys.readouterr().out.split())
    for word in words:
        assert word in said, said


def test_any_jsonl_file_can_be_the_benchmark(done, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for split, low in (("train", 0), ("heldout", 1000)):
        rows = [
            {"id": str(i), "question": f"What is {i} + 3?", "choices": None, "answer": str(i + 3)}
            for i in range(low, low + (10 if split == "train" else 6))
        ]
        text = "\n".join(json.dumps(row) for row in rows) + "\n"
        (tmp_path / f"{split}.jsonl").write_text(text)
    args = arguments(
        tmp_path / "run", tmp_path / "store", "--config.task.name=sums",
        f"--config.task.train_file={tmp_path}/train.jsonl",
        f"--config.task.heldout_file={tmp_path}/heldout.jsonl", "--config.train.steps=2",
        "--config.train.batch_size=16", "--config.grade.anchors=4",
    )  # fmt: skip
    assert run.main(args) == 0, capsys.readouterr().out
    assert json.loads((tmp_path / "run/results.json").read_text())["questions"] == 6
    (tmp_path / "heldout.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    assert run.main([*args, "--workdir", str(tmp_path / "other")]) == 1
    assert "train" in capsys.readouterr().out  # training questions among the held-out ones


def test_a_long_held_out_prompt_is_found_before_anything_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for split, times in (("train", 1), ("heldout", 400)):
        rows = [
            {"id": f"{split}{i}", "question": f"{split} {i}" + " + 1" * times, "choices": None,
             "answer": "2"} for i in range(4)
        ]  # fmt: skip
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    args = arguments(
        tmp_path / "run", tmp_path / "store", "--config.task.name=sums",
        f"--config.task.train_file={tmp_path}/train.jsonl",
        f"--config.task.heldout_file={tmp_path}/heldout.jsonl", "--config.grade.anchors=4",
        "--config.store.on_long=error",
    )  # fmt: skip
    assert run.main(args) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "question 'heldout/heldout0'" in said and "28 such calls in all" in said
    assert "training:" not in said and not list((tmp_path / "store").iterdir())
    assert not (tmp_path / "run/config.json").exists()


def test_the_readme_examples_run(done, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    scopes = []
    for example in (b for b in blocks if "gradejax.restore" in b):
        scopes.append({})
        exec(example.replace("runs/grade_tiny", str(done[0])), scopes[-1])  # noqa: S102
    answers = next(scope["answers"] for scope in scopes if "answers" in scope)
    assert len(answers) == 4
    for answer in answers:
        assert answer.trace.asked and 0 <= answer.probability <= 1
        assert set(answer.trace.votes) == set(answer.trace.asked)
        assert set(answer.trace.kept) <= set(answer.trace.asked)
    decision = next(scope["decision"] for scope in scopes if "decision" in scope)
    assert decision.asked.shape == (1, 7)
    capsys.readouterr()
    assert f"workdir: {done[0]}" in repr(scopes[0]["system"])
    assert "seed: 0, step 6" in repr(scopes[0]["system"])
