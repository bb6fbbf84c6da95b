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
INPUTS = {
    "questions": {"training": {"a": "1", "b": "2", "c": "3"}, "held-out": {"e": "1", "f": "2"}},
    "experts": {"A": {"weights": "1", "text": "1"}, "B": {"weights": "2", "text": "2"}, "C": {}},
}
OTHER_INPUTS = {
    "questions": {"training": {"a": "1", "b": "9", "d": "3"}, "held-out": {"f": "2", "e": "1"}},
    "experts": {"A": {"weights": "9", "text": "1"}, "B": {"weights": "2", "text": "9"}},
}
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


def commit(folder, step=1):
    """What a committed checkpoint looks like from outside."""
    (folder / "checkpoints" / str(step)).mkdir(parents=True)
    (folder / "checkpoints" / str(step) / "_CHECKPOINT_METADATA").write_text("{}")


@pytest.mark.parametrize("stored", ['{"seed": 9}', '{"se'])
def test_a_folder_without_a_checkpoint_stands_in_nobodys_way(tmp_path, stored):
    """A first command that failed must not block the corrected one."""
    (tmp_path / "config.json").write_text(stored)
    (tmp_path / "checkpoints" / "1.orbax-checkpoint-tmp").mkdir(parents=True)
    with Workdir(tmp_path) as workdir:
        assert not workdir.begun and workdir.check(CONFIG) is False
        assert workdir.config.read_text() == stored  # checking writes nothing
        assert workdir.claim(CONFIG, INPUTS) is False
        assert workdir.claim(CONFIG, OTHER_INPUTS) is True
    assert read_config(tmp_path)["seed"] == 1
    assert json.loads((tmp_path / "inputs.json").read_text()) == OTHER_INPUTS


@pytest.mark.parametrize("seed_folder", ["", "seed_2"])
def test_other_questions_and_experts_under_the_same_config_are_refused(tmp_path, seed_folder):
    with Workdir(tmp_path) as workdir:
        workdir.claim(CONFIG, INPUTS)
        commit(tmp_path / seed_folder)
        assert workdir.claim(CONFIG, INPUTS) is True
        with pytest.raises(WorkdirError) as error:
            workdir.claim(CONFIG, OTHER_INPUTS)
        said = str(error.value)
        for line in ("training questions: 1 changed: b", "training questions: 1 gone: c",
                     "training questions: 1 new: d", "expert A: other weights or config.json",
                     "expert B: other tokenizer or chat template", "expert C: gone",
                     "held-out questions: the same questions in another order"):  # fmt: skip
            assert f"  {line}\n" in said, said
        assert json.loads(workdir.inputs.read_text()) == INPUTS
        workdir.inputs.write_text("{")
        with pytest.raises(WorkdirError, match="inputs.json is damaged .* delete it to go on"):
            workdir.claim(CONFIG, INPUTS)
        workdir.inputs.unlink()  # a run of a version that kept none
        assert workdir.claim(CONFIG, INPUTS) is True
        assert json.loads(workdir.inputs.read_text()) == INPUTS


def test_another_config_is_refused_with_keys_and_both_values(tmp_path):
    with Workdir(tmp_path) as workdir:
        workdir.claim(CONFIG, may_change=MAY_CHANGE)
        commit(tmp_path)
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
        commit(tmp_path)
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
    for damaged in (b'{"a": ', b'{"a": "\xff"}'):
        (tmp_path / "config.json").write_bytes(damaged)
        with pytest.raises(WorkdirError, match="config.json is damaged"):
            read_config(tmp_path)
