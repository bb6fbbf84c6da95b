"""The record of a training run: metrics.jsonl and TensorBoard events.

Metrics travel as (sum, count) and are divided here, once, so that neither accumulation nor
sharding biases them. metrics.jsonl holds one row per (attempt, step); when a run resumes, rows
after the restored step are marked superseded (fault F08), so the rows that remain are those of an
unbroken run. Wall-clock figures stand apart, in the field ``seconds``.
"""

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gradejax.training.files import storage_errors, write_atomic

RESERVED = ("step", "attempt", "seconds", "superseded")


def divide(metrics: Mapping[str, Any]) -> dict[str, float | list[float] | None]:
    """Means of a step's metrics, as Python floats.

    Args:
      metrics: name → (sum, count), each a scalar or a vector of one shape; a bare value stands for
        itself (count 1).

    Returns:
      name → sum / count, None where nothing was counted; a list for a vector.

    Raises:
      ValueError: a name that rows use themselves, or a metric with more than one axis.
    """
    out = {}
    for name, value in metrics.items():
        if name in RESERVED:
            raise ValueError(f"a metric must not be called any of {RESERVED}, got {name!r}")
        total, count = value if isinstance(value, tuple | list) else (value, 1)
        total, count = np.broadcast_arrays(np.float64(total), np.float64(count))
        if total.ndim > 1:
            raise ValueError(f"metric {name!r} has shape {total.shape}; expected [] or [n]")
        means = [
            float(s / c) if c else None
            for s, c in zip(total.reshape(-1), count.reshape(-1), strict=True)
        ]
        out[name] = means if total.ndim else means[0]
    return out


def _encode(value):
    """Floats that JSON has no word for become strings; Python's own NaN is not valid JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {k: _encode(v) for k, v in value.items()}
    return [_encode(v) for v in value] if isinstance(value, list) else value


def _decode(value):
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return [_decode(v) for v in value] if isinstance(value, list) else value


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(_encode(row), allow_nan=False) + "\n"


def read_rows(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Every row of a metrics file, superseded ones included, in the order written.

    A last line that was cut by a kill is left out.

    Raises:
      ValueError: another line is damaged; it names the line.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    rows = []
    # What is no text becomes a line that is no JSON, and is named below.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines):
            break  # what follows the last line end: nothing, or the torn beginning of a row
        try:
            rows.append({k: _decode(v) for k, v in json.loads(line).items()})
        except (json.JSONDecodeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number} is damaged: {line[:80]!r}") from error
    return rows


def read_metrics(path: str | os.PathLike, *, wall_clock: bool = False) -> list[dict[str, Any]]:
    """The final rows of a run, one per step, as an unbroken run would have written them.

    Args:
      path: metrics.jsonl.
      wall_clock: keep ``attempt`` and ``seconds``, which differ between an unbroken run and one
        that was interrupted.
    """
    drop = {"superseded"} | (set() if wall_clock else {"attempt", "seconds"})
    return [
        {k: v for k, v in row.items() if k not in drop}
        for row in read_rows(path)
        if not row.get("superseded")
    ]


class RunLog:
    """Writes a run's metrics; one row per (attempt, step).

    Args:
      metrics: path of metrics.jsonl.
      events: folder of TensorBoard events, or None for none.
    """

    def __init__(self, metrics: str | os.PathLike, events: str | os.PathLike | None = None):
        self._path = pathlib.Path(metrics)
        self._events = _Events(pathlib.Path(events)) if events is not None else None
        self._file = None
        self.attempt = 0

    def begin(self, step: int) -> int:
        """Start (or go on with) this attempt after ``step`` finished steps; returns its number.

        Rows of later steps are marked superseded. Calling it again at the place where the log
        stands changes nothing.

        Raises:
          StorageError: the disk refused; the file is unchanged.
        """
        rows = read_rows(self._path)
        later = [r for r in rows if r["step"] > step and not r.get("superseded")]
        if self._file is not None and not later:
            return self.attempt
        self._close_file()
        if not self.attempt:
            self.attempt = 1 + max((r["attempt"] for r in rows), default=0)
        for row in later:
            row["superseded"] = True
        # Rewritten also when nothing is superseded: that drops the torn line of a killed run.
        write_atomic(self._path, "".join(map(_line, rows)))
        with storage_errors(str(self._path)):
            # Unbuffered: a row is with the system at once, so a kill loses none that was written
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 closed in close()
        if self._events is not None:
            self._events.open(self.attempt, step, resumed=self.attempt > 1 or bool(later))
        return self.attempt

    def write(
        self, step: int, means: Mapping[str, Any], seconds: Mapping[str, float] | None = None
    ) -> None:
        """Append one step's row; it is with the operating system when this returns.

        Args:
          step: optimiser batches done, this one included.
          means: what ``divide`` gives.
          seconds: wall-clock figures.

        Raises:
          StorageError: the disk refused; rows written before stay readable.
        """
        if self._file is None:
            raise RuntimeError("call begin(step) before write")
        seconds = dict(seconds or {})
        row = {"attempt": self.attempt, "step": step, **means, "seconds": seconds}
        with storage_errors(str(self._path), "rows written before are safe"):
            self._append(_line(row).encode())
        if self._events is not None:
            self._events.write(step, {**means, **{f"seconds/{k}": v for k, v in seconds.items()}})

    def close(self) -> None:
        self._close_file()
        if self._events is not None:
            self._events.close()

    def _append(self, line: bytes) -> None:
        start = self._file.tell()
        done = 0
        try:
            while done < len(line):
                done += self._file.write(line[done:])
        except OSError:
            self._file.truncate(start)  # no half row in the middle, should the run write again
            raise

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Events:
    """TensorBoard event files of a run.

    tensorboardX's SummaryWriter is left out on purpose: it writes from a thread behind a short
    queue, so a full disk ends the thread and then blocks the run for ever, and two writers opened
    within a second overwrite one file.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._writer: EventsWriter | None = None
        self._opened = 0
        self._flushed = 0.0

    def open(self, attempt: int, step: int, *, resumed: bool) -> None:
        self.close()
        self._opened += 1
        with storage_errors(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{attempt}-{self._opened}"
            self._writer = EventsWriter(str(self._folder / "events"), suffix)
        if resumed:
            # TensorBoard then forgets what an earlier attempt wrote from this step on.
            self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, means: Mapping[str, Any]) -> None:
        values = []
        for name, value in means.items():
            many = isinstance(value, list)
            values += [
                Summary.Value(tag=f"{name}/{i}" if many else name, simple_value=v)
                for i, v in enumerate(value if many else [value])
                if v is not None
            ]
        self._add(Event(step=step, summary=Summary(value=values)))

    def _add(self, event) -> None:
        event.wall_time = time.time()
        with storage_errors(str(self._folder), "metrics.jsonl holds every row"):
            self._writer.write_event(event)
            if event.wall_time - self._flushed > 5:  # a flush waits for the disk: milliseconds
                self._writer.flush()
                self._flushed = event.wall_time

    def close(self) -> None:
        if self._writer is not None:
            with storage_errors(str(self._folder), "metrics.jsonl holds every row"):
                writer, self._writer = self._writer, None
                writer.close()
