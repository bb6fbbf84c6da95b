"""Experts behind APIs are asked while the local models compute: one lane of work for each.

A lane is a thread that saves what its provider delivers, in small groups soon after they came: a
killed process loses the calls under way and about a second of finished ones.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from gradejax.experts.replies import ExpertCallError, Missing, Reply

SAVE_SECONDS = 1.0
GRACE_SECONDS = 10.0  # for calls under way when asking is broken off: they are paid for
_DONE = object()


class RemoteLane(threading.Thread):
    """Asks one provider the questions of one model and settings.

    Args:
      provider: with `submit`, as `OpenAIProvider`.
      spec: the seat asked.
      keys: N keys of the calls.
      prompts, seeds: N each.
      save: called with {key: Reply or Missing}, from this thread.
      on_error: "raise" stops at the first missing reply, with `error` set; "missing" goes on.

    Attributes:
      error: what ended the lane, None while it is fine.
      ended: set when nothing more comes and all is saved.
    """

    def __init__(self, provider, spec, keys: Sequence[str], prompts: Sequence, seeds: Sequence[int],
                 save: Callable[[Mapping[str, Reply | Missing]], None], on_error: str):
        super().__init__(name=f"asking {spec.name}", daemon=True)
        self.spec, self.keys, self.save, self.on_error = spec, list(keys), save, on_error
        self.error: BaseException | None = None
        # Not join(): interrupted by Ctrl-C, Python 3.11 takes a running thread for ended.
        self.ended = threading.Event()
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._asking = provider.submit(spec, prompts, seeds,
                                       lambda i, result: self._queue.put((i, result)))
        self._asking.future.add_done_callback(lambda _: self._queue.put(_DONE))

    def run(self) -> None:
        try:
            self._collect()
            if not self._asking.future.cancelled() and self._asking.future.exception():
                raise self._asking.future.exception()
        except BaseException as error:
            self._asking.cancel()
            self.error = self.error or error
        finally:
            self.ended.set()

    def _collect(self) -> None:
        finished: dict[str, Reply | Missing] = {}
        last, done = time.monotonic(), False
        while not done:
            try:
                item = self._queue.get(timeout=SAVE_SECONDS)
            except queue.Empty:
                item = None
            done = item is _DONE
            if item is not None and not done:
                i, result = item
                finished[self.keys[i]] = result
                if isinstance(result, Missing) and self.on_error == "raise" and not self.error:
                    self._asking.stop()
                    self.error = ExpertCallError(
                        result.state, f"expert {self.spec.name!r}: {result.message}")
            if finished and (done or time.monotonic() - last >= SAVE_SECONDS):
                self.save(finished)
                finished, last = {}, time.monotonic()

    def break_off(self) -> None:
        """Begin nothing more and save what is finished; calls under way get a short grace."""
        self._asking.stop()
        try:
            self.ended.wait(GRACE_SECONDS)
        finally:
            # Also when the wait itself is interrupted: the user means it.
            self._asking.cancel()
            self.ended.wait(GRACE_SECONDS)


def wait_for(lanes: Sequence[RemoteLane]) -> None:
    """Return when all lanes have ended.

    Raises: the first lane's error, as soon as there is one.
    """
    for lane in lanes:
        while not lane.ended.wait(0.1):
            check(lanes)
    check(lanes)


def check(lanes: Sequence[RemoteLane]) -> None:
    """Raises: the first lane's error, if there is one."""
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
