"""The folder of one run: who may write there, of which config it is, and what it holds.

    config.json  inputs.json  metrics.jsonl  results.json  events/  checkpoints/  .lock

A folder belongs to its config, and to the questions and experts it was trained on (inputs.json
holds their digests), from its first checkpoint on: what comes before is worth nothing, and must not
stand in the way of a corrected command.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from gradejax.training.digest import changed_experts, changed_questions
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

    @property
    def inputs(self) -> pathlib.Path:
        return self.path / "inputs.json"

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint of any seed: something that must not be mixed up."""
        committed = "checkpoints/*/_CHECKPOINT_METADATA"
        return any(next(self.path.glob(p), None) for p in (committed, f"seed_*/{committed}"))

    def check(self, config: Mapping[str, Any], *, may_change: Sequence[str] = ()) -> bool:
        """Whether a run of ``config`` goes on here (True) or starts (False); writes nothing.

        Args:
          config: the resolved config, nested, JSON-serialisable.
          may_change: dotted keys or sections that may differ from the stored config.

        Raises:
          WorkdirError: there is a checkpoint, and other keys differ; each is named with both
            values.
        """
        if not self.config.exists():
            return False
        if not self.begun:
            with contextlib.suppress(WorkdirError):  # damaged: it is written anew
                return all(_covered(k, may_change)
                           for k in differences(read_config(self.path), config))  # fmt: skip
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
        return True

    def claim(
        self, config: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, *,
        may_change: Sequence[str] = (),
    ) -> bool:  # fmt: skip
        """Make this the folder of ``config`` and ``inputs``, or check that it is; see ``check``.

        Args:
          config: the resolved config; values that may change are stored anew.
          inputs: {"questions": {split: ``question_digests``}, "experts": {seat: facts}}.
          may_change: as in ``check``.

        Raises:
          WorkdirError: there is a checkpoint, and the config, a question or an expert differs.
          StorageError: the disk refused.
        """
        known = self.check(config, may_change=may_change)
        old = self._stored_inputs() if inputs is not None and self.begun else None
        if old is not None:
            self._check_inputs(old, inputs)
        as_json = json.loads(json.dumps(config))
        if not known or read_config(self.path) != as_json:
            write_json(self.config, config)
        if inputs is not None and old != inputs:
            write_json(self.inputs, inputs)
        return known

    def _stored_inputs(self) -> dict[str, Any] | None:
        try:
            return json.loads(self.inputs.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None  # a run of a version that kept none
        except (OSError, ValueError) as error:
            raise WorkdirError(
                f"{self.inputs} is damaged ({error}), so it is not known which questions and "
                "experts this run was trained on; delete it to go on without that check"
            ) from error

    def _check_inputs(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        lines = [
            f"  {split} questions: {words}"
            for split, now in new["questions"].items()
            for words in changed_questions(old["questions"].get(split, {}), now)
        ]
        lines += [f"  expert {words}" for words in changed_experts(old["experts"], new["experts"])]
        if lines:
            raise WorkdirError(
                f"workdir {self.path} holds a run on other questions or experts, though the config "
                "is the same:\n" + "\n".join(lines)
                + "\nPut the old ones back to go on with that run, or give another --workdir."
            )  # fmt: skip

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Replace results.json; raises StorageError if the disk refuses (the old one stays)."""
        write_json(self.results, results)

    def close(self) -> None:
        """Let the folder go."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with contextlib.suppress(OSError):  # the name in it is for people only
                os.ftruncate(lock, 0)
            os.close(lock)

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
    except (ValueError, RecursionError) as error:  # no JSON, or no text at all
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
