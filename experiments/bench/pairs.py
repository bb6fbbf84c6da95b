"""Ours against a peer: two processes, one call of each in turn, the ratio of their medians.

A worker is a process that says ``ready``, and then answers every line it is sent with one JSON
line about one timed call. Only one of the two works at a time, both know nothing of each other, and
whatever else the machine does falls on both alike.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class Worker:
    """A process that times one call a line.

    Args:
      command: its arguments.
      env: added to this process's environment.

    Raises:
      RuntimeError: it ended before it was ready, or in the middle of a call; what it wrote to
        stderr is on ours.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None):
        self._command = list(command)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | (env or {}),
        )  # fmt: skip
        self.facts = self._answer()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print as well
                return json.loads(line)
        raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.wait()}")

    def call(self, number: int) -> dict[str, Any]:
        """One timed call; at least ``seconds`` and ``tokens``."""
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(facts: dict[str, Any], call: Callable[[int], dict[str, Any]]) -> None:
    """The other end of a ``Worker``: say ready, then time a call for every line."""
    print(json.dumps({"ready": True} | facts), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        out = call(int(line))
        print(json.dumps({"seconds": time.perf_counter() - start} | out), flush=True)


def interleave(ours: Worker, theirs: Worker, pairs: int, rest: float = 0.3) -> dict[str, Any]:
    """``pairs`` calls of each in turn, after one of each that is not counted.

    Args:
      ours, theirs: the workers.
      pairs: at least 1.
      rest: seconds between calls, so that no thread of the one still spins while the other works.

    Returns:
      medians of tokens a second, their ratio, and all seconds.
    """
    speeds: tuple[list, list] = ([], [])
    seconds: tuple[list, list] = ([], [])
    last = [{}, {}]
    for number in range(pairs + 1):
        for side, worker in enumerate((ours, theirs)):
            time.sleep(rest)
            last[side] = worker.call(number)
            if number:
                speeds[side].append(last[side]["tokens"] / last[side]["seconds"])
                seconds[side].append(round(last[side]["seconds"], 4))
    mine, peers = (statistics.median(s) for s in speeds)
    return {
        "ours_tokens_per_s": round(mine, 1),
        "peer_tokens_per_s": round(peers, 1),
        "ratio": round(mine / peers, 3),
        "pairs": pairs,
        "ours_s": seconds[0],
        "peer_s": seconds[1],
        "last": last,
    }
