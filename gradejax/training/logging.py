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
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter
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
    lines = path.read_text(encoding="utf-8").split("\n")
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
        self._events = events
        self._file = None
        self._writer: SummaryWriter | None = None
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
            if self._writer is not None:
                self._writer.close()
            # purge_step makes TensorBoard forget what an earlier attempt wrote after this step
            self._writer = SummaryWriter(
                str(self._events), purge_step=step + 1 if self.attempt > 1 or later else None
            )
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
        row = {"attempt": self.attempt, "step": step, **means, "seconds": dict(seconds or {})}
        with storage_errors(str(self._path), "rows written before are safe"):
            self._append(_line(row).encode())
        if self._writer is not None:
            values = []
            scalars = {**means, **{f"seconds/{k}": v for k, v in row["seconds"].items()}}
            for name, value in scalars.items():
                parts = enumerate(value) if isinstance(value, list) else [(None, value)]
                values += [
                    Summary.Value(tag=name if i is None else f"{name}/{i}", simple_value=v)
                    for i, v in parts
                    if v is not None
                ]
            # One event a step: add_scalar would make one for every metric
            self._writer.file_writer.add_summary(Summary(value=values), step)

    def close(self) -> None:
        self._close_file()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

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
