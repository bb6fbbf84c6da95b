"""What a person sees while a run trains: one live line, or now and then a plain one."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def _show(value) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "/".join(map(_show, value))
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"


class ProgressLine:
    """Shows chosen metrics of a run; a context manager.

    Args:
      names: metrics to show, in order; those a row lacks are left out. A mapping gives each its
        label.
      steps: steps in all.
      file: where; a terminal gets one live line, anything else a plain line now and then.
      every: seconds between plain lines.
    """

    def __init__(
        self, names: Sequence[str] | Mapping[str, str], steps: int, *,
        file: TextIO | None = None, every: float = 10.0,
    ):  # fmt: skip
        self._labels = dict(names) if isinstance(names, Mapping) else {n: n for n in names}
        self._steps, self._every = steps, every
        self._file = file or sys.stdout
        self._said: set[str] = set()
        self._last = -math.inf
        self._live: Progress | None = None
        if self._file.isatty():
            self._live = Progress(
                TextColumn("{task.completed}/{task.total}"), BarColumn(bar_width=16),
                TextColumn("{task.fields[metrics]}", markup=False), TimeRemainingColumn(),
                console=Console(file=self._file), refresh_per_second=4,
            )  # fmt: skip
            self._task = self._live.add_task("", total=steps, metrics="")

    def update(self, step: int, means: Mapping[str, Any]) -> None:
        """Show a step's metrics (``train``'s on_progress)."""
        shown = "  ".join(
            f"{label} {_show(means[name])}" for name, label in self._labels.items() if name in means
        )
        if self._live is not None:
            self._live.update(self._task, completed=step, metrics=shown)
            return
        now = time.monotonic()
        if now - self._last >= self._every or step >= self._steps:
            self._last = now
            print(f"step {step}/{self._steps}  {shown}", file=self._file, flush=True)

    def say(self, text: str) -> None:
        """Print a line of its own, above the live one."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._file, flush=True)

    def warn(self, text: str, key: str | None = None) -> None:
        """Say a warning once.

        Args:
          text: what.
          key: what makes it the same warning (a gate's name, when the text holds numbers); the
            text itself by default.
        """
        key = text if key is None else key
        if key not in self._said:
            self._said.add(key)
            self.say(f"warning: {text}")

    def __enter__(self):
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._live is not None:
            self._live.stop()
