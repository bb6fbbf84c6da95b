"""The provider "openai": experts behind any OpenAI-compatible server.

All calls run on one event loop in a thread of its own, so that replies arrive while the local
models compute. Every question has its own tries and its own deadline; whatever happens to it ends
as a `Reply` or as a `Missing` with a reason, and never reaches a neighbour. What a server sends or
an exception says is shown only after the key was taken out of it.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradejax.experts import retry
from gradejax.experts.budget import Budget, Cost
from gradejax.experts.completion import CallFailed, clip
from gradejax.experts.connection import Connection
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.keys import canonical_json
from gradejax.experts.replies import Missing, Reply, Usage
from gradejax.experts.spec import ExpertSpec

logger = logging.getLogger(__name__)

Deliver = Callable[[int, Reply | Missing], None]


class OpenAIProvider:
    """Asks servers. Safe to use from several threads.

    Args:
      budget: what may be spent; no limit by default.
      draw: uniform in [0, 1), for the jitter; tests bring their own.
    """

    def __init__(self, *, budget: Budget | None = None, draw: Callable[[], float] = random.random):
        self.budget = budget or Budget()
        self.draw = draw
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[Endpoint, Connection] = {}

    def describe(self, spec: ExpertSpec) -> Mapping[str, Any]:
        """What of the model goes into a reply's key. The weights are not ours to see: give another
        `revision` when the server's model has changed.

        Raises: ValueError when the `openai` package or the key is missing.
        """
        Connection.check(spec.api)
        return {"provider": spec.provider, "server": spec.api.base_url, "model": spec.model,
                "revision": spec.revision}

    def render(self, spec: ExpertSpec, messages: list[dict[str, str]]) -> str:
        """The messages as JSON; the server has the chat template."""
        return canonical_json(messages)

    def encode(self, spec: ExpertSpec, prompt: str, question_id: str) -> str:
        """The prompt as it is: the server has the tokenizer, and knows the context's length."""
        return prompt

    def submit(self, spec: ExpertSpec, prompts: Sequence[str], seeds: Sequence[int],
               deliver: Deliver) -> Asking:
        """Begin to ask; returns at once.

        Args:
          spec: the seat.
          prompts: N rendered prompts.
          seeds: N row seeds, sent along when the sampling is not greedy.
          deliver: called with (row, Reply or Missing) as they come, in any order, from another
            thread; it must be quick.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="experts behind APIs",
                                 daemon=True).start()
        asking = Asking(spec, len(prompts), deliver)
        asking.future = asyncio.run_coroutine_threadsafe(
            self._ask(asking, list(prompts), list(seeds)), self._loop)
        return asking

    def reply(self, spec: ExpertSpec, prompts: Sequence[str], seeds: Sequence[int]
              ) -> list[Reply | Missing]:
        """Ask, and wait for all; one result a prompt, in order."""
        results: dict[int, Reply | Missing] = {}
        asking = self.submit(spec, prompts, seeds, results.__setitem__)
        try:
            asking.future.result()
        except BaseException:
            asking.cancel()
            raise
        return [results[i] for i in range(len(prompts))]

    async def _ask(self, asking: Asking, prompts: list[str], seeds: list[int]) -> None:
        endpoint = asking.spec.api
        connection = self._connections.get(endpoint)
        if connection is None:
            connection = self._connections[endpoint] = Connection(endpoint)
        async with asyncio.TaskGroup() as group:
            for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
                group.create_task(self._one(asking, connection, i, prompt, seed))
        asking.report()

    async def _one(self, asking: Asking, connection: Connection, i: int, prompt: str, seed: int
                   ) -> None:
        """One question, from its turn to its result."""
        async with connection.slots:
            if asking.stopped:
                return
            begin = time.perf_counter()
            try:
                result = await self._tries(asking, connection, prompt, seed, begin)
            except Exception as error:
                logger.error("expert %r: a call ended unexpectedly\n%s", asking.spec.name,
                             connection.redact(traceback.format_exc()))
                message = connection.redact(f"{type(error).__name__}: {error}")
                result = Missing("failed", clip(message))
            if result is not None:
                asking.count(result)
                asking.deliver(i, result)

    async def _tries(self, asking: Asking, connection: Connection, prompt: str, seed: int,
                     begin: float) -> Reply | Missing | None:
        """Try until there is a reply, the tries are used up, or a wait would pass the deadline."""
        spec, endpoint = asking.spec, asking.spec.api
        loop = asyncio.get_running_loop()
        deadline = loop.time() + endpoint.deadline
        most = _most(spec, prompt)
        for n in range(endpoint.attempts):
            if asking.closed is not None:
                return asking.closed
            paused = connection.pause_left(loop.time())
            if paused:
                paused += self.draw() * endpoint.backoff_base
                if loop.time() + paused >= deadline:
                    return Missing("rate_limited", "the server asks to wait beyond the deadline of "
                                                   f"{endpoint.deadline:g} s")
                await asyncio.sleep(paused)
            if not await self._reserve(most):
                return Missing("budget", f"not asked: {self.budget.over}")
            # When the count is unknown, the most is taken: a limit on money must hold.
            actual = most
            try:
                async with asyncio.timeout_at(deadline):
                    got = await connection.call(spec, prompt, seed)
                actual = _cost(endpoint, got.prompt_tokens, got.output_tokens)
                usage = Usage(got.output_tokens, actual.money, got.estimated, got.model, n + 1)
                nothing = np.zeros((0,), np.float32)
                return Reply(text=got.text, tokens=nothing.astype(np.int32), logprobs=nothing,
                             finish_reason=got.finish_reason, hidden=nothing,
                             prompt_tokens=got.prompt_tokens,
                             seconds=time.perf_counter() - begin, usage=usage)
            except TimeoutError:
                return Missing("timeout", f"no whole reply within {endpoint.deadline:g} s")
            except CallFailed as error:
                failed = error
                if error.used is not None:
                    actual = _cost(endpoint, *error.used)
                elif not error.billed:
                    actual = Cost(0.0, 0.0)
            finally:
                self.budget.settle(most, actual)
            missing = Missing(failed.state, f"{failed} (try {n + 1} of {endpoint.attempts})")
            if failed.closed:
                asking.close(missing)
            if not failed.again or n + 1 == endpoint.attempts or asking.stopped:
                return missing
            seconds = retry.wait(n, failed.wait, base=endpoint.backoff_base,
                                 cap=endpoint.backoff_cap, left=deadline - loop.time(),
                                 draw=self.draw())
            if seconds is None:
                return Missing(failed.state, f"{failed}; the next try would come after the "
                                             f"deadline of {endpoint.deadline:g} s")
            if failed.wait is not None:
                connection.pause(loop.time() + failed.wait)
            await asyncio.sleep(seconds)
        raise AssertionError("the last try returns")

    async def _reserve(self, most: Cost) -> bool:
        while (fits := self.budget.reserve(most)) is None:
            await asyncio.sleep(0.01)  # until a call under way has ended and freed its share
        return fits


class Asking:
    """A batch of questions under way.

    Attributes:
      future: done when every question has its result, or asking was stopped.
      stopped: no further question begins.
      closed: set when the server will answer none of the rest: their result.
    """

    def __init__(self, spec: ExpertSpec, total: int, deliver: Deliver):
        self.spec, self.total, self.deliver = spec, total, deliver
        self.future: concurrent.futures.Future
        self.stopped = False
        self.closed: Missing | None = None
        self._missing: collections.Counter = collections.Counter()
        self._first: Missing | None = None
        self._in_a_row = 0

    def stop(self) -> None:
        """Begin no further question; those under way go on, without further tries."""
        self.stopped = True

    def cancel(self) -> None:
        """End those under way too."""
        self.stopped = True
        self.future.cancel()

    def close(self, missing: Missing) -> None:
        """Give the rest up for the reason of `missing`."""
        if self.closed is None:
            self.closed = Missing(missing.state, f"not asked, after: {missing.message}")

    def count(self, result: Reply | Missing) -> None:
        if isinstance(result, Reply):
            self._in_a_row = 0
            return
        self._missing[result.state] += 1
        self._first = self._first or result
        # A long question fails for itself and says nothing of the server.
        if result.state not in ("budget", "too_long", "refused"):
            self._in_a_row += 1
        if self._in_a_row >= self.spec.api.give_up_after:
            self.close(result)

    def report(self) -> None:
        if self._missing:
            logger.warning("expert %r (%s): %d of %d calls missing %s; the first: %s",
                           self.spec.name, self.spec.model, sum(self._missing.values()),
                           self.total, dict(self._missing), self._first.message)


def _most(spec: ExpertSpec, prompt: str) -> Cost:
    """What a call may cost at most: a token is at least a byte."""
    return _cost(spec.api, len(prompt.encode("utf-8")), spec.max_new_tokens)


def _cost(endpoint: Endpoint, prompt_tokens: int, output_tokens: int) -> Cost:
    return Cost(prompt_tokens + output_tokens, endpoint.price(prompt_tokens, output_tokens))
