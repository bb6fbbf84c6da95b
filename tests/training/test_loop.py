"""Interrupted runs end as unbroken ones, and no bad state is ever saved."""

import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_run

from gradejax.training.checkpoint import Checkpoints
from gradejax.training.logging import RunLog, read_metrics, read_rows
from gradejax.training.loop import NonFiniteLoss, train

SCRIPT = pathlib.Path(toy_run.__file__)


def start(*args, **kwargs):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, args)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken")
    state, status = toy_run.run(path)
    assert status.name == "finished" and status.step == 23
    return toy_run.digest(state), read_metrics(path / "metrics.jsonl")


def test_the_toy_learns_and_its_rows_are_whole(unbroken):
    _, rows = unbroken
    assert [r["step"] for r in rows] == list(range(1, 24))
    losses = [r["loss"] for r in rows]
    assert np.mean(losses[-10:]) < 0.2 * np.mean(losses[:5])
    assert [r["batch_step"] for r in rows] == list(range(23))  # batch n feeds step n + 1
    assert len(rows[0]["usage"]) == 3


def test_sigkill_and_resume_equal_an_unbroken_run(tmp_path, unbroken):
    # Killed while step 18 is shown: the newest checkpoint is 15, rows 16 to 18 are on disk.
    killed = start(tmp_path, "--kill-at", 18)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert [r["step"] for r in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 19))
    resumed = start(tmp_path)
    out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    digest, rows = unbroken
    assert (tmp_path / "digest").read_text() == digest
    assert read_metrics(tmp_path / "metrics.jsonl") == rows
    every = read_rows(tmp_path / "metrics.jsonl")
    superseded = [(r["attempt"], r["step"]) for r in every if r.get("superseded")]
    assert superseded == [(1, 16), (1, 17), (1, 18)]
    assert {r["attempt"] for r in every if r["step"] > 15 and not r.get("superseded")} == {2}


def test_sigterm_saves_leaves_and_says_how_to_go_on(tmp_path, unbroken):
    stopped = start(tmp_path, "--term-at", 7)
    out, err = stopped.communicate(timeout=120)
    assert stopped.returncode == 3, err
    # Seen while the metrics of step 7 are shown, which is when step 8 has been dispatched.
    assert out.startswith("SIGTERM: saved step 8 of 23. To go on, run the same command again: ")
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 8
    command = shlex.split(out.strip().split("again: ")[1])
    assert command[-4:] == [str(SCRIPT), str(tmp_path), "--term-at", "7"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    digest, rows = unbroken
    assert (tmp_path / "digest").read_text() == digest
    assert read_metrics(tmp_path / "metrics.jsonl") == rows
    assert not any(r.get("superseded") for r in read_rows(tmp_path / "metrics.jsonl"))


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    first = start(tmp_path, "--hold")
    try:
        assert first.stdout.readline().strip() == "holding"
        second = start(tmp_path)
        _, err = second.communicate(timeout=120)
        assert second.returncode == 1
        assert re.search(rf"in use by process {first.pid} on .*another --workdir", err)
    finally:
        first.kill()
        first.communicate()
    state, status = toy_run.run(tmp_path, steps=2)
    assert status.name == "finished"


def test_the_final_step_is_saved_and_a_longer_run_goes_on(tmp_path, unbroken):
    # C06: 25 steps, every 10: what is there at the end is 10, 20, 25
    with Checkpoints(tmp_path / "c", keep=9) as checkpoints, RunLog(tmp_path / "m.jsonl") as log:
        step_fn = jax.jit(toy_run.plain_step)
        state, _ = train(
            step_fn, toy_run.fresh(), toy_run.batch_at, steps=25, checkpoints=checkpoints,
            log=log, save_every=10,
        )  # fmt: skip
        assert checkpoints.all_steps() == [10, 20, 25]
        again, status = train(
            step_fn, state, toy_run.batch_at, steps=27, checkpoints=checkpoints, log=log,
            save_every=10,
        )  # fmt: skip
        assert checkpoints.all_steps() == [10, 20, 25, 27] and int(again.step) == 27
    every = read_rows(tmp_path / "m.jsonl")
    assert [r["step"] for r in every] == list(range(1, 28))
    assert {r["attempt"] for r in every} == {1}  # one process, one attempt
    assert read_metrics(tmp_path / "m.jsonl")[:23] == unbroken[1]


def bad_from(step, what):
    """The toy step with a loss, or with parameters, that are NaN at a step."""

    @jax.jit
    def step_fn(state, batch):
        state, metrics = toy_run.plain_step(state, batch)
        bad = jnp.where(state.step >= step, jnp.nan, 0.0)
        if what == "loss":
            total, count = metrics["loss"]
            return state, metrics | {"loss": (total + bad, count)}
        return state.replace(params=jax.tree.map(lambda x: x + bad, state.params)), metrics

    return step_fn


@pytest.mark.parametrize("step", [7, 10])  # between two saves, and at a save
def test_a_loss_that_is_not_finite_stops_before_anything_bad_is_saved(tmp_path, step):
    with pytest.raises(NonFiniteLoss, match=f"nan at step {step}; .*good checkpoint, step 5,"):
        toy_run.run(tmp_path, step_fn=bad_from(step, "loss"))
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.all_steps() == [5]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["step"] == step and np.isnan(rows[-1]["loss"])
    # the run can go on from there once its cause is gone
    state, _ = toy_run.run(tmp_path, steps=12)
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_parameters_that_turn_nan_under_a_finite_loss_are_not_saved(tmp_path):
    # The loss of step 10 is that of the parameters before it: finite, though the update is not.
    with pytest.raises(NonFiniteLoss, match=r"after step 10 .*\['b'\], \['w'\].* step 5,"):
        toy_run.run(tmp_path, step_fn=bad_from(10, "params"))
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.all_steps() == [5]


def test_nan_before_the_first_checkpoint_says_that_there_is_none(tmp_path):
    with pytest.raises(NonFiniteLoss, match="step 1; no checkpoint was saved before it"):
        toy_run.run(tmp_path, step_fn=bad_from(1, "loss"))


def test_should_stop_saves_and_leaves(tmp_path):
    calls = iter([False, False, True])
    state, status = toy_run.run(tmp_path, should_stop=lambda: next(calls))
    assert (status.name, status.step, int(state.step)) == ("stopped", 3, 3)
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 3


def test_metrics_come_one_step_late_and_batches_one_step_early(tmp_path):
    order = []

    def batch_at(step):
        order.append(f"batch {step}")
        return toy_run.batch_at(step)

    def step_fn(state, batch):
        order.append(f"step {int(state.step) + 1}")
        return toy_run.plain_step(state, batch)

    with Checkpoints(tmp_path / "c") as checkpoints, RunLog(tmp_path / "m.jsonl") as log:
        train(
            step_fn, toy_run.fresh(), batch_at, steps=3, checkpoints=checkpoints, log=log,
            save_every=100, on_progress=lambda step, _: order.append(f"shown {step}"),
        )  # fmt: skip
    assert order == [
        "batch 0", "step 1", "batch 1", "step 2", "batch 2", "shown 1", "step 3", "shown 2",
        "shown 3",
    ]  # fmt: skip


def test_handlers_are_put_back_and_a_thread_may_train(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    toy_run.run(tmp_path / "a", steps=1)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    ends = []
    thread = threading.Thread(target=lambda: ends.append(toy_run.run(tmp_path / "b", steps=1)))
    thread.start()
    thread.join(60)
    assert ends[0][1].name == "finished"


def test_the_second_signal_acts_at_once(tmp_path):
    def slow(step, means):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        toy_run.run(tmp_path, on_progress=slow)


def test_a_replicated_state_is_stored_as_one(tmp_path):
    state = jax.tree.map(lambda x: jnp.stack([x, x]), toy_run.fresh())
    step_fn = jax.vmap(toy_run.plain_step, in_axes=(0, None))
    with Checkpoints(tmp_path / "c") as checkpoints, RunLog(tmp_path / "m.jsonl") as log:
        _, status = train(
            lambda s, b: (step_fn(s, b)[0], {}), state, toy_run.batch_at, steps=2,
            checkpoints=checkpoints, log=log, save_every=1,
            to_save=lambda s: jax.tree.map(lambda x: x[0], s),
        )  # fmt: skip
        assert status.step == 2
        restored = checkpoints.restore(toy_run.fresh())
    assert int(restored.step) == 2


def test_save_every_is_checked(tmp_path):
    with pytest.raises(ValueError, match="save_every must be at least 1, got 0"):
        toy_run.run(tmp_path, save_every=0)


def test_rows_are_valid_json_and_hold_wall_clock_apart(tmp_path):
    toy_run.run(tmp_path, steps=2)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    assert set(row) == {"attempt", "step", "loss", "batch_step", "usage", "seconds"}
    assert set(row["seconds"]) == {"step", "run"}
