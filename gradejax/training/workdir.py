"""The folder of one run: who may write there, of which config it is, and what it holds.

    config.json  metrics.jsonl  results.json  events/  checkpoints/  .lock
"""

import fcntl
import json
import os
import pathlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from gradejax.training.files import StorageError, storage_errors, write_json

ABSENT = "<absent>"


class WorkdirError(RuntimeError):
    """A workdir cannot be used as asked; the message says why and what to do."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as {"a.b": value}; an empty mapping stays as a value."""
    out = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{name}.")
        else:
            out[name] = dict(value) if isinstance(value, Mapping) else value
    return out


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{"a.b": (old value, new value)} of two nested configs as JSON sees them; ABSENT for none."""
    old, new = (flatten(json.loads(json.dumps(c))) for c in (old, new))
    return {
        key: (old.get(key, ABSENT), new.get(key, ABSENT))
        for key in sorted(old.keys() | new.keys())
        if old.get(key, ABSENT) != new.get(key, ABSENT)
    }


def _covered(key: str, prefixes: Sequence[str]) -> bool:
    return any(key == p or key.startswith(f"{p}.") for p in prefixes)


class Workdir:
    """A run's folder, held by one process at a time.

    The lock is the kernel's: it goes with the process, however that ends, so a killed run never
    leaves a folder locked.

    Args:
      path: made if missing.

    Raises:
      WorkdirError: another process holds it (its number is named), or the path is no folder.
      StorageError: it cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path).absolute()
        if self.path.exists() and not self.path.is_dir():
            raise WorkdirError(f"workdir {self.path} is a file, not a folder")
        with storage_errors(f"in workdir {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._lock, 200).decode(errors="replace") or "another process"
            os.close(self._lock)
            raise WorkdirError(
                f"workdir {self.path} is in use by {holder}; wait for that run or stop it, or give "
                "another --workdir"
            ) from error
        # Never deleted: a second process could then lock a new file of the same name.
        with storage_errors(f"in workdir {self.path}"):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    @property
    def config(self) -> pathlib.Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> pathlib.Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> pathlib.Path:
        return self.path / "events"

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def results(self) -> pathlib.Path:
        return self.path / "results.json"

    def claim(self, config: Mapping[str, Any], *, may_change: Sequence[str] = ()) -> bool:
        """Make this the folder of ``config``, or check that it is.

        Args:
          config: the resolved config, nested, JSON-serialisable.
          may_change: dotted keys or sections that may differ from the stored config; the new
            values are then stored.

        Returns:
          True if the folder was claimed before (a resume), False if it is new.

        Raises:
          WorkdirError: other keys differ; each is named with both values.
        """
        if not self.config.exists():
            write_json(self.config, config)
            return False
        found = differences(read_config(self.path), config)
        refused = {k: v for k, v in found.items() if not _covered(k, may_change)}
        if refused:
            lines = [f"  {k}: {old!r} there, {new!r} now" for k, (old, new) in refused.items()]
            raise WorkdirError(
                f"workdir {self.path} holds a run of another config:\n" + "\n".join(lines)
                + "\nGive another --workdir, or the old values to go on with that run"
                + (f" (only {', '.join(may_change)} may change)." if may_change else ".")
            )  # fmt: skip
        if found:
            write_json(self.config, config)
        return True

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Replace results.json; raises StorageError if the disk refuses (the old one stays)."""
        write_json(self.results, results)

    def close(self) -> None:
        """Let the folder go."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """The config of a run, without taking its lock.

    Raises:
      WorkdirError: no config.json there, or it is damaged.
    """
    file = pathlib.Path(path) / "config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WorkdirError(f"{path} is no workdir of a run: it has no config.json") from error
    except json.JSONDecodeError as error:
        raise WorkdirError(f"{file} is damaged: {error}") from error


__all__ = [
    "ABSENT",
    "StorageError",
    "Workdir",
    "WorkdirError",
    "differences",
    "flatten",
    "read_config",
]
