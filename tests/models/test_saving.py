"""A kill at any moment of writing over another pair leaves one of the two pairs, or none."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gradejax.models import saving
from gradejax.models.saving import save_pair

NAMES = ("model.safetensors", "config.json")


class Killed(BaseException):
    """Not an Exception: nothing on the way may catch it and go on."""


def write(folder, number):
    save_pair(folder, NAMES[0], {"w": np.full(3, number, np.float32)}, NAMES[1], {"n": number})


def pair(folder):
    """(number in the weights, number in the config), None where a file is missing."""
    weights, config = (folder / n for n in NAMES)
    return (float(load_file(weights)["w"][0]) if weights.exists() else None,
            json.loads(config.read_text())["n"] if config.exists() else None)  # fmt: skip


def test_files_are_whole_readable_and_alone(tmp_path):
    (tmp_path / "other.txt").write_text("stays")
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert pair(tmp_path) == (2, 2)
    assert {p.name for p in tmp_path.iterdir()} == {*NAMES, "other.txt"}
    assert {(tmp_path / n).stat().st_mode & 0o777 for n in NAMES} <= {0o644, 0o640, 0o664}


@pytest.mark.parametrize("at", range(7))
def test_killed_between_any_two_steps(tmp_path, monkeypatch, at):
    """Steps: weights, their flush, the config's, unlink, two renames, the folder's flush.

    Written straight over each other, the files were (2, 1) in between: new weights, old config.
    """
    write(tmp_path, 1)
    steps = []

    def counted(function):
        def run(*args, **options):
            if len(steps) == at:
                raise Killed
            steps.append(function)
            return function(*args, **options)

        return run

    monkeypatch.setattr(saving, "save_file", counted(save_file))
    monkeypatch.setattr(saving, "_to_disk", counted(saving._to_disk))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    unlink = saving.pathlib.Path.unlink
    path = type(tmp_path)
    monkeypatch.setattr(path, "unlink", lambda self, **options: (
        counted(unlink)(self, **options) if self.name == NAMES[1] else unlink(self, **options)))
    with pytest.raises(Killed):
        write(tmp_path, 2)
    weights, config = pair(tmp_path)
    assert config is None if 4 <= at <= 5 else weights == config == (1 if at < 4 else 2)
    monkeypatch.undo()
    write(tmp_path, 3)
    assert pair(tmp_path) == (3, 3)
