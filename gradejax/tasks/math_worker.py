"""The process that compares formulas; started by `math_pool` as a plain script.

One JSON list [gold, given, cpu_seconds] a line on stdin; one JSON list [equal, comparable] a line
on the descriptor named on the command line. It imports nothing of gradejax, so that it starts fast
and can be run by path.
"""

import contextlib
import json
import logging
import os
import resource
import select
import signal
import sys

MEMORY_BYTES = 2 * 2**30


class OutOfTime(BaseException):
    """Not an Exception: sympy catches those."""


def compare(gold: str, given: str) -> tuple[bool, bool]:
    """(equal, comparable): are both formulas understood as a whole, and are they one?"""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str):
        # one formula, whole: no number is picked out of a formula that does not parse
        return parse(
            f"${text}$",
            [LatexExtractionConfig(boxed_match_priority=-1)],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
            raise_on_error=False,
        )

    left, right = read(gold), read(given)
    if not left or not right:
        return False, False
    return verify(left, right, timeout_seconds=None), True


def _alarm(signum, frame):
    # a second alarm ends the process, should a bare except swallow the first
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    raise OutOfTime


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")
    parent = os.getppid()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    compare("x+1", "1+x")  # the parser builds its tables at its first use
    answers.write("ready\n")
    while True:
        # the pipe stays open in processes forked from the parent: look after the parent as well
        while not select.select([sys.stdin], [], [], 5.0)[0]:
            if os.getppid() != parent:
                return
        line = sys.stdin.readline()
        if not line:
            return
        gold, given, seconds = json.loads(line)
        verdict = (False, False)
        try:
            signal.signal(signal.SIGPROF, _alarm)
            signal.setitimer(signal.ITIMER_PROF, seconds, seconds / 2)
            verdict = compare(gold, given)
        except (OutOfTime, Exception):  # noqa: BLE001  any failure means "cannot compare"
            pass
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(verdict) + "\n")


if __name__ == "__main__":
    main()
