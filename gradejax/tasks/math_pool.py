"""Worker processes that compare formulas, replaced when they overrun.

Plain subprocesses that speak JSON lines: they can be started from any thread and from the daemonic
workers of a process pool, and need no signal in the caller. A forked process starts workers of its
own and never speaks to its parent's.
"""

import atexit
import contextlib
import json
import os
import pathlib
import queue
import select
import subprocess
import sys
import threading
import time

_WORKER = pathlib.Path(__file__).with_name("math_worker.py")
START_S = 120.0  # importing sympy on a busy machine
# A worker limits its CPU time itself. It is ended when it has used this much more, or, whatever it
# does, after WALL times its limit: wall time alone would call a busy machine's worker late.
GRACE_S, WALL = 0.5, 20.0
_POLL_S = 0.25


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                # -P: this folder's numbers.py must not stand in for the standard library's
                [sys.executable, "-P", str(_WORKER), str(write_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_end,),
                start_new_session=True,  # Ctrl-C is the parent's business
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.read_end, self.buffer = read_end, b""
        if self._line(time.monotonic() + START_S, float("inf")) != b"ready":
            self.end()
            raise RuntimeError(
                "the process that compares formulas did not start; expected math-verify to be "
                f"installed for {sys.executable}"
            )

    def compare(self, gold: str, given: str, limit_s: float) -> tuple[bool, bool] | None:
        """The verdict, or None when the worker is lost (it must then be ended)."""
        try:
            self.process.stdin.write(json.dumps([gold, given, limit_s]).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        line = self._line(time.monotonic() + WALL * limit_s, self._cpu_s() + limit_s + GRACE_S)
        return None if line is None else tuple(json.loads(line))

    def _line(self, deadline: float, cpu_deadline: float) -> bytes | None:
        while b"\n" not in self.buffer:
            if select.select([self.read_end], [], [], _POLL_S)[0]:
                chunk = os.read(self.read_end, 65536)
                if not chunk:
                    return None
                self.buffer += chunk
            elif time.monotonic() > deadline or self._cpu_s() > cpu_deadline:
                return None
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _cpu_s(self) -> float:
        """CPU seconds the process has used; 0 where the system does not tell."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1]
            return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return 0.0

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()
        os.close(self.read_end)


class Pool:
    """Up to `size` workers, started when first needed."""

    def __init__(self, size: int) -> None:
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)  # a place whose worker is not running
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()

    def compare(self, gold: str, given: str, limit_s: float) -> tuple[bool, bool]:
        """(equal, comparable). Waits for a free worker; safe in any thread.

        A comparison that overruns its CPU limit, or whose worker dies, is (False, False).
        """
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker()
                with self._lock:
                    self._workers.add(worker)
            verdict = worker.compare(gold, given, limit_s)
            if verdict is None:
                self._drop(worker)
                worker = None
                verdict = (False, False)
            return verdict
        except BaseException:
            # interrupted in the middle: the worker's next line would answer another question
            if worker is not None:
                self._drop(worker)
                worker = None
            raise
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Ends all workers."""
        with self._lock:
            workers, self._workers = self._workers, set()
        for worker in workers:
            worker.end()

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.end()


_pool: Pool | None = None
_pool_lock = threading.Lock()


def pool() -> Pool:
    """This process's pool."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool(max(1, min(4, os.cpu_count() or 1)))
        return _pool


def _forget() -> None:
    """In a forked child: the workers belong to the parent, and so may a held lock."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


def _close() -> None:
    if _pool is not None:
        _pool.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
