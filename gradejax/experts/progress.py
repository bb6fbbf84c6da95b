"""How far the asking is, and how long it will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far the asking is: distinct calls done of all, how many were stored, whose turn, and the
    seconds left (None until something is known)."""

    done: int
    total: int
    stored: int
    model: str
    seconds_left: float | None = None


class Tracker:
    """Counts calls as they finish, by lanes that run at the same time.

    Args:
      say: called with a `Progress`, one call at a time, from whichever thread finished something.
      done: calls that need no asking.
      total: distinct calls.
      stored: how many of `done` were read from the store.
      clock: seconds; tests bring their own.
    """

    def __init__(self, say: Callable[[Progress], None] | None, *, done: int, total: int,
                 stored: int, clock: Callable[[], float] = time.monotonic):
        self._say = say or (lambda _: None)
        self._done, self._total, self._stored = done, total, stored
        self._clock, self._begin = clock, clock()
        self._lanes: dict[str, list[int]] = {}  # lane -> [done, total]
        self._lock = threading.Lock()

    def lane(self, name: str, total: int) -> None:
        """Announce calls to be made in a lane; the same name again adds to it."""
        self._lanes.setdefault(name, [0, 0])[1] += total

    def start(self) -> None:
        """Say where asking begins; time counts from here."""
        self._begin = self._clock()
        self._say(Progress(self._done, self._total, self._stored, ""))

    def finished(self, lane: str, n: int, model: str) -> None:
        with self._lock:
            self._done += n
            self._lanes[lane][0] += n
            self._say(Progress(self._done, self._total, self._stored, model, self._left()))

    def _left(self) -> float | None:
        """The slowest lane decides: they run side by side."""
        passed, left = self._clock() - self._begin, 0.0
        for done, total in self._lanes.values():
            if done < total:
                if not done:
                    return None
                left = max(left, passed / done * (total - done))
        return left


def duration(seconds: float) -> str:
    """Seconds as a person says them: "40 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
