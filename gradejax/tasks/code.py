"""Tasks whose answer is a program: read from the reply, run against the item's tests in a sandbox.

An example's `meta` holds `test` and `entry_point`; its question is the code that the program goes
on from. A sandbox that failed says nothing about the program: such a reply is missing, not wrong.
"""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass

from gradejax.tasks.base import (
    CUT_REASONS,
    MISSING_CALL,
    Example,
    Judged,
    Outcome,
    Task,
    after_thinking,
)
from gradejax.tasks.sandbox import check, find_code

_REMEMBERED = 4096


def canonical_code(code: str, example: Example) -> str:
    """The program without comments, blanks and quoting styles; what does not parse as it stands."""
    del example
    try:
        return ast.unparse(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code.strip()


def extract_code(text: str, example: Example) -> str | None:
    """The program that a reply gives, or None."""
    visible = after_thinking(text)
    if not visible or not visible.strip():
        return None
    return find_code(visible, example.meta["entry_point"], example.question)


@functools.lru_cache(maxsize=_REMEMBERED)
def _run(code: str, tests: str, entry_point: str, prompt: str):
    """A program is run once, however many seats wrote it."""
    return check(code, tests, entry_point, prompt=prompt, find=False)


def _result(code: str, example: Example):
    return _run(code, example.meta["test"], example.meta["entry_point"], example.question)


def grade_code(answer: str | None, example: Example) -> bool:
    """Does the program pass the item's tests?"""
    return answer is not None and _result(answer, example).outcome == "correct"


@dataclass(frozen=True)
class CodeTask(Task):
    """A task whose verdict is the sandbox's."""

    def judge(self, reply_text: str | None, finish_reason: str | None, example: Example) -> Judged:
        """See `Task.judge`; a sandbox that failed makes the reply missing."""
        if finish_reason in CUT_REASONS:
            return Judged(Outcome.TRUNCATED, None, None)
        answer = None if reply_text is None else self.extract(reply_text, example)
        if answer is None:
            return Judged(Outcome.NO_ANSWER, None, None)
        outcome = Outcome(_result(answer, example).outcome)
        if outcome is Outcome.MISSING:
            return MISSING_CALL
        if outcome is Outcome.NO_ANSWER:
            return Judged(outcome, None, None)
        return Judged(outcome, answer, self.canonical(answer, example))


def make_code_task(name: str, format_slot: Callable[[Example], str]) -> CodeTask:
    """A task whose answers are programs.

    Two right programs seldom are one text, and no canonical form makes them so: `same` joins only
    equal ones, and several candidates of a question may be right.
    """
    return CodeTask(
        name, format_slot, extract_code, canonical_code, grade_code, same=lambda a, b: False,
        needs_meta=("entry_point",),  # the tests are for grading, not for answering
    )
