"""Weights and the config that reads them, two files that must never be of two models.

A rename replaces one file, not two. So the old config goes before the new weights come, and the new
config comes last: a run that is killed in between leaves a folder that no loader takes for a model,
never the weights of one under the config of another.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def save_pair(folder: str | pathlib.Path, weights: str, tensors: Mapping[str, np.ndarray],
              config: str, entries: Mapping[str, Any]) -> None:  # fmt: skip
    """Write a safetensors file and a JSON file that belong together.

    Args:
      folder: made if missing; other files in it stay.
      weights: name of the safetensors file.
      tensors: what it holds.
      config: name of the JSON file.
      entries: what it holds.

    Raises:
      OSError: the disk refused. Until the new weights are whole on the disk the old pair stays.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f".{name}.{os.getpid()}.part" for name in (weights, config)]
    try:
        save_file(dict(tensors), parts[0], metadata={"format": "pt"})
        parts[0].chmod(0o644)  # safetensors makes it private
        parts[1].write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for part in parts:
            _to_disk(part)
        (folder / config).unlink(missing_ok=True)
        os.replace(parts[0], folder / weights)
        os.replace(parts[1], folder / config)
        with contextlib.suppress(OSError):  # not every system lets a folder be opened
            _to_disk(folder)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _to_disk(path: pathlib.Path) -> None:
    """A rename may reach the disk before what was written does."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
