"""What a run was trained on is what it goes on with: data, weights, folders; and clean endings."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest

import gradejax
from experiments import run
from gradejax.experts import segments
from gradejax.experts.replies import ExpertCallError
from gradejax.training import files
from gradejax.training.checkpoint import CheckpointError

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "experiments/configs/grade_tiny.py"
MODELS = ("arithmetic", "logic", "algorithmic", "orchestrator")
SEATS = {"A1": "arithmetic", "A2": "arithmetic", "A3": "arithmetic", "B1": "logic", "B2": "logic",
         "B3": "algorithmic"}  # fmt: skip


def arguments(base, *extra):
    """A run on files and model folders under ``base``, all named relative to it."""
    pool = [f"--config.pool.agents.{seat}.model=models/{m}" for seat, m in SEATS.items()]
    pool += [f"--config.pool.agents.{seat}.max_new_tokens=16" for seat in SEATS]
    return [
        f"--config={CONFIG}", "--workdir=run", "--config.store.path=store", "--config.seeds=0,1",
        *pool, "--config.pool.orchestrator.model=models/orchestrator", "--config.task.name=sums",
        "--config.task.train_file=train.jsonl", "--config.task.heldout_file=heldout.jsonl",
        "--config.train.batch_size=8", "--config.grade.d=8", "--config.grade.anchors=4",
        "--config.grade.memory_slots=16", "--config.evaluation.replicates=50",
        "--config.train.steps=2", *extra,
    ]  # fmt: skip


def write(base, split, low, count):
    rows = [
        {"id": str(i), "question": f"What is {i} + 3?", "choices": None, "answer": str(i + 3)}
        for i in range(low, low + count)
    ]
    (base / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    base = tmp_path_factory.mktemp("inputs")
    for name in MODELS:
        shutil.copytree(ROOT / "checkpoints" / name, base / "models" / name)
    write(base, "train", 0, 8)
    write(base, "heldout", 1000, 4)
    here = os.getcwd()
    os.chdir(base)
    try:
        assert run.main(arguments(base)) == 0
    finally:
        os.chdir(here)
    return base


@pytest.fixture
def base(trained, tmp_path, monkeypatch):
    """A copy of the finished run, and the working directory in it."""
    shutil.copytree(trained, tmp_path / "base")
    monkeypatch.chdir(tmp_path / "base")
    return tmp_path / "base"


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_seed_folders_hold_what_restoring_needs(trained, monkeypatch, tmp_path):
    """Also from another working directory: models were named relative to the first one."""
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "run/seed_1"):
        system = gradejax.restore(trained / folder)
        assert len(system.anchors.questions) == 4
        model = pathlib.Path(system.frozen.registry["A1"].model)
        assert model == trained / "models/arithmetic"
    (answer,) = system.answer(["What is 2 + 3?"])
    assert answer.trace.asked
    there = {p.name for p in (trained / "run/seed_1").iterdir()}
    assert there == {"anchors.json", "anchors.npz", "checkpoints", "events", "metrics.jsonl"}
    assert {p.name for p in (trained / "run").iterdir()} == there | {
        ".lock", "accuracy_vs_params.png", "config.json", "inputs.json", "missing.jsonl",
        "results.json", "seed_1",
    }  # fmt: skip


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_edited_questions_are_refused(base, split, capsys):
    file = base / f"{split}.jsonl"
    lines = file.read_text().splitlines()
    edited = json.loads(lines[1]) | {"answer": "77"}
    file.write_text("\n".join([lines[0], json.dumps(edited), *lines[2:]]) + "\n")
    assert run.main(arguments(base, "--config.train.steps=3")) == 1
    words = {"train": "training questions: 1 changed: train/1",
             "heldout": "held-out questions: 1 changed: heldout/1001"}[split]  # fmt: skip
    text = said(capsys)
    assert words in text and "asked" not in text
    assert not (base / "run/checkpoints/3").exists()


def test_other_weights_in_the_same_folder_are_refused(base, capsys):
    shutil.rmtree(base / "models/arithmetic")
    shutil.copytree(ROOT / "checkpoints/algorithmic", base / "models/arithmetic")
    assert run.main(arguments(base, "--config.train.steps=3")) == 1
    text = said(capsys)
    assert "expert A1: other weights or config.json" in text and "expert B1" not in text


@pytest.mark.parametrize(
    ("model", "file", "said"),
    [
        ("arithmetic", "model.safetensors", "A1: other weights or config.json"),
        ("logic", "tokenizer_config.json", "B1: other tokenizer or chat template"),
    ],
)
def test_restoring_with_other_experts_is_refused(trained, model, file, said):
    path = trained / "models" / model / file
    before = path.read_bytes()
    changed = bytearray(before)
    if file == "model.safetensors":
        changed[-1000] ^= 1  # the last bit of one weight
    else:
        config = json.loads(before)
        config["chat_template"] += " "
        changed = json.dumps(config).encode()
    path.write_bytes(changed)
    try:
        with pytest.raises(CheckpointError, match=said):
            gradejax.restore(trained / "run")
    finally:
        path.write_bytes(before)
    assert gradejax.restore(trained / "run").anchors is not None


def test_anchors_are_written_once_and_mended(base, monkeypatch):
    files_ = [base / "run" / name for name in ("anchors.json", "anchors.npz")]
    before = [(f.stat().st_ino, f.read_bytes()) for f in files_]
    assert run.main(arguments(base)) == 0
    assert [(f.stat().st_ino, f.read_bytes()) for f in files_] == before
    files_[1].write_bytes(before[1][1][:100])
    assert run.main(arguments(base)) == 0
    assert files_[1].read_bytes() == before[1][1]


@pytest.mark.parametrize("name", ["anchors.json", "anchors.npz"])
@pytest.mark.parametrize("keep", [None, 0, 60, -5])
def test_a_system_without_its_anchors_still_answers(base, name, keep):
    file = base / "run" / name
    if keep is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:keep])
    system = gradejax.restore(base / "run")
    assert system.anchors is None
    what = "is missing" if keep is None else "is damaged"
    with pytest.raises(ValueError, match=f"{name}.* {what}.*the run's own command writes them"):
        system.swap("A1", system.frozen.registry["A2"])
    if name == "anchors.json" and keep is None:
        assert system.answer(["What is 2 + 3?"])[0].trace.asked


def test_restore_says_what_it_expects(base):
    with pytest.raises(ValueError, match="expects the path of a run's workdir, got None"):
        gradejax.restore(None)
    for step in ("2", 2.0, True):
        with pytest.raises(ValueError, match="step must be a whole number"):
            gradejax.restore(base / "run", step=step)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 .*\[2\]"):
        gradejax.restore(base / "run", step=7)


@pytest.mark.parametrize("error", [
    MemoryError("Unable to allocate 11.2 TiB"),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 11 bytes.\nmore"),
])  # fmt: skip
def test_too_little_memory_is_one_line(base, capsys, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(run, "evaluate", fail)
    assert run.main(arguments(base)) == 1
    out = said(capsys)
    assert "not enough memory in evaluation" in out and "evaluation.replicates" in out
    assert str(error).splitlines()[0] in out and "trained states are kept" in out


def test_a_first_command_that_failed_does_not_block_the_corrected_one(base, capsys):
    shutil.rmtree(base / "run")
    assert run.main(arguments(base, "--config.pool.agents.A1.model=nosuch")) == 1
    assert "nosuch" in said(capsys)
    assert run.main(arguments(base, "--config.seeds=0,")) == 0


def test_evaluating_what_was_never_trained_is_refused_before_asking(base, capsys):
    arguments_ = arguments(base, "--workdir=new", "--config.mode=evaluate")
    assert run.main(arguments_) == 1
    assert "needs a trained run" in said(capsys)
    assert not (base / "new/config.json").exists()


def refuse(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "gone"),
    [
        (segments.os, "fsync", "store"),
        (files.os, "fsync", "run"),
        (files.os, "replace", "run/anchors.npz"),
        (files.os, "replace", "run/config.json"),
        (files.os, "replace", "run/accuracy_vs_params.png"),
        (files.os, "replace", "run/metrics.jsonl"),
        (pathlib.Path, "mkdir", "store"),
        (pathlib.Path, "mkdir", "run/seed_1"),
        (pathlib.Path, "mkdir", "run/events"),
    ],
)
def test_every_write_that_the_disk_refuses_is_one_line(
    base, capsys, monkeypatch, module, name, gone
):
    """Nothing is left behind, and the same command goes on once there is space."""
    path = base / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if gone.endswith("json") or gone == "run":
        shutil.rmtree(base / "run", ignore_errors=True)
    real = getattr(module, name)

    def pick(*args, **kwargs):
        target = pathlib.Path(args[-1]).name if isinstance(args[-1], str | os.PathLike) else ""
        mine = args[0] if name == "mkdir" else target
        if name == "fsync" or pathlib.Path(mine).name == path.name:
            refuse()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, pick)
    assert run.main(arguments(base)) == 1
    text = said(capsys)
    assert "error: " in text and "No space left" in text
    monkeypatch.undo()
    os.chdir(base)
    left = [p.name for p in base.rglob("*") if "tmp" in p.name or p.name.endswith(".part")]
    assert left == []


def test_an_expert_that_fails_is_one_line(base, capsys, monkeypatch):
    shutil.rmtree(base / "store")

    def fail(*_):
        raise ExpertCallError("timeout", "no reply in time")

    monkeypatch.setattr("gradejax.experts.local.LocalProvider.reply", fail)
    assert run.main(arguments(base)) == 1
    assert "error: no reply in time" in said(capsys)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", ["asking", "training", "evaluation"])
def test_a_signal_leaves_cleanly_and_says_how_to_go_on(base, capsys, monkeypatch, stage, stop):
    target = {
        "asking": "experiments.run.ask_pool", "training": "experiments.run.Trainer",
        "evaluation": "experiments.run.evaluate",
    }[stage]  # fmt: skip

    def interrupted(*_):
        os.kill(os.getpid(), stop)
        time.sleep(5)
        raise AssertionError("the signal did nothing")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(target, interrupted)
    assert run.main(arguments(base)) == 3
    text = said(capsys)
    assert f"{stop.name}: interrupted in {stage}; " in text and " kept. To go on" in text
    assert "To go on, run the same command again: " in text
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_runs_on_one_workdir(base):
    """The second process is refused while the first lives, which then leaves cleanly."""
    shutil.rmtree(base / "run")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    # so long that it cannot end before it is told to
    longer = arguments(base, "--config.seeds=0,", "--config.train.steps=1000000")
    command = [sys.executable, "-m", "experiments.run", *longer]
    first = subprocess.Popen(command, cwd=base, stdout=subprocess.PIPE, text=True, env=environment)
    while first.poll() is None and not (base / "run/.lock").exists():
        time.sleep(0.01)
    second = subprocess.run(command, cwd=base, capture_output=True, text=True, env=environment)
    assert second.returncode == 1 and f"is in use by process {first.pid}" in second.stdout
    assert first.poll() is None
    first.terminate()
    out, _ = first.communicate(timeout=500)
    assert first.returncode == 3 and "To go on, run the same command again" in out
