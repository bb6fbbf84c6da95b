"""Workdirs: one run at a time, one config, files whole or unchanged."""

import json
import os

import pytest

from gradejax.training import files
from gradejax.training.files import StorageError, write_atomic, write_json
from gradejax.training.workdir import (
    ABSENT,
    Workdir,
    WorkdirError,
    differences,
    flatten,
    read_config,
)

CONFIG = {"seed": 1, "train": {"steps": 200, "learning_rate": 3e-4}, "pool": {"agents": ("a", "b")}}
MAY_CHANGE = ("train.steps", "logging", "mode")


def test_two_holders_are_refused_also_within_a_process(tmp_path):
    with Workdir(tmp_path / "run"):
        with pytest.raises(WorkdirError, match=f"in use by process {os.getpid()} on "):
            Workdir(tmp_path / "run")
        with Workdir(tmp_path / "other"):
            pass
    with Workdir(tmp_path / "run"):
        pass


def test_a_lock_of_a_dead_process_does_not_hold(tmp_path):
    (tmp_path / ".lock").write_text("process 1 on elsewhere")
    with Workdir(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} ")


def test_claim_stores_the_config_and_knows_it_again(tmp_path):
    with Workdir(tmp_path / "run") as workdir:
        assert workdir.claim(CONFIG, may_change=MAY_CHANGE) is False
        # a tuple comes back as a list, which is no difference
        assert workdir.claim(CONFIG, may_change=MAY_CHANGE) is True
    assert read_config(tmp_path / "run")["pool"] == {"agents": ["a", "b"]}


def test_what_may_change_is_taken_over(tmp_path):
    with Workdir(tmp_path) as workdir:
        workdir.claim(CONFIG, may_change=MAY_CHANGE)
        longer = {
            **CONFIG, "train": {**CONFIG["train"], "steps": 400}, "mode": "evaluate",
            "logging": {"every": 5},
        }  # fmt: skip
        assert workdir.claim(longer, may_change=MAY_CHANGE)
    assert read_config(tmp_path)["train"]["steps"] == 400
    assert read_config(tmp_path)["logging"] == {"every": 5}


def test_another_config_is_refused_with_keys_and_both_values(tmp_path):
    with Workdir(tmp_path) as workdir:
        workdir.claim(CONFIG, may_change=MAY_CHANGE)
        before = workdir.config.read_bytes()
        other = {"seed": 2, "train": {"steps": 400, "learning_rate": 1e-3}, "new": {"x": None}}
        with pytest.raises(WorkdirError) as error:
            workdir.claim(other, may_change=MAY_CHANGE)
        text = str(error.value)
        assert "  seed: 1 there, 2 now\n" in text
        assert "  train.learning_rate: 0.0003 there, 0.001 now\n" in text
        assert f"  pool.agents: ['a', 'b'] there, {ABSENT!r} now\n" in text
        assert f"  new.x: {ABSENT!r} there, None now\n" in text
        assert "steps:" not in text and "only train.steps, logging, mode may change" in text
        assert workdir.config.read_bytes() == before


def test_a_prefix_is_a_whole_section_name(tmp_path):
    # "train.steps" does not let "train.steps_inner" through, nor "mode" "model"
    with Workdir(tmp_path) as workdir:
        workdir.claim({"train": {"steps_inner": 1}, "model": "a"}, may_change=MAY_CHANGE)
        for other in ({"train": {"steps_inner": 2}, "model": "a"},
                      {"train": {"steps_inner": 1}, "model": "b"}):  # fmt: skip
            with pytest.raises(WorkdirError):
                workdir.claim(other, may_change=MAY_CHANGE)


def test_flatten_and_differences():
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert differences({"a": {"b": 1}}, {"a": {"b": 1}}) == {}
    # a section that became a value
    assert differences({"a": {"b": 1}}, {"a": 2}) == {"a": (ABSENT, 2), "a.b": (1, ABSENT)}


def test_results_are_replaced_whole(tmp_path, monkeypatch):
    with Workdir(tmp_path) as workdir:
        workdir.write_results({"n": 1})

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(StorageError, match="results.json: No space left on device; nothing "):
            workdir.write_results({"n": 2})
        monkeypatch.undo()
        assert json.loads(workdir.results.read_text()) == {"n": 1}
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "results.json"]
        with pytest.raises(ValueError, match="JSON"):
            write_json(workdir.results, {"n": float("nan")})
        assert json.loads(workdir.results.read_text()) == {"n": 1}


def test_write_atomic_in_a_folder_that_is_missing(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        write_atomic(tmp_path / "none" / "x", "text")


def test_what_is_no_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="is a file, not a folder"):
        Workdir(tmp_path / "file")
    with pytest.raises(StorageError, match="Not a directory"):
        Workdir(tmp_path / "file" / "below")
    with pytest.raises(WorkdirError, match="no workdir of a run: it has no config.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"a": ')
    with pytest.raises(WorkdirError, match="config.json is damaged"):
        read_config(tmp_path)
