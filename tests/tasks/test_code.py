"""Programs in replies, graded by their tests in the sandbox."""

import pytest

from gradejax.tasks import code as code_lib
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.code import canonical_code, make_code_task
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.sandbox import Result

TESTS = "def check(candidate):\n    assert candidate(2, 3) == 5\n"
ADD = Example(
    "t/0", 'def add(a, b):\n    """The sum of a and b."""\n', None, "    return a + b\n",
    meta={"entry_point": "add", "test": TESTS},
)  # fmt: skip
TASK = make_code_task("humaneval", FORMATS["code"])


def judge(reply, finish="stop"):
    return TASK.judge(reply, finish, ADD)


@pytest.mark.parametrize(
    "reply, outcome",
    [
        ("```python\ndef add(a, b):\n    return a + b\n```", Outcome.RIGHT),
        ("    return a + b", Outcome.RIGHT),
        ("So be it.\n" * 6000 + "```python\ndef add(a, b):\n    return a + b\n```", Outcome.RIGHT),
        ("\ufeff```python\r\ufeffdef add(a, b):\r    return a + b\r```", Outcome.RIGHT),
        ('```python\ndef add(a, b):\n    """\n    ```\n    5\n    ```\n    """\n'
         '    return a + b\n```', Outcome.RIGHT),
        ("```python\ntry:\n    def add(a, b):\n        return a + b\n"
         "except OSError:\n    pass\n```", Outcome.RIGHT),
        ("```python\ndef add(a, b):\n    return a + b\n```\nIn short:\n```python\n"
         "def add(a, b):\n    raise NotImplementedError\n```", Outcome.RIGHT),
        ("    raise NotImplementedError", Outcome.WRONG),
        ("```python\ndef add(a, b):\n    return a - b\n```", Outcome.WRONG),
        ("I cannot help with that.", Outcome.NO_ANSWER),
        ("", Outcome.NO_ANSWER),
        (None, Outcome.NO_ANSWER),
        ("<think>def add(a, b): return a + b", Outcome.NO_ANSWER),
    ],
)  # fmt: skip
def test_outcomes(reply, outcome):
    judged = judge(reply)
    assert judged.outcome is outcome
    assert (judged.answer is None) == (outcome is Outcome.NO_ANSWER)


def test_a_reply_that_was_cut_is_truncated():
    reply = "```python\ndef add(a, b):\n    return a + b\n```"
    assert judge(reply, "length").outcome is Outcome.TRUNCATED


def test_a_sandbox_that_fails_makes_the_reply_missing_not_wrong(monkeypatch):
    failed = Result("missing", "no kernel", None, 0, 0.0, "", False, False, False, (), "")
    monkeypatch.setattr(code_lib, "check", lambda *a, **k: failed)
    code_lib._run.cache_clear()
    try:
        assert judge("def add(a, b):\n    return a * b").outcome is Outcome.MISSING
    finally:
        code_lib._run.cache_clear()


def test_a_program_is_run_once(monkeypatch):
    runs = []
    passed = Result("correct", "", "", 1, 0.0, "", True, True, True, (), "")
    monkeypatch.setattr(code_lib, "check", lambda *a, **k: runs.append(a) or passed)
    code_lib._run.cache_clear()
    try:
        for _ in range(3):
            assert judge("def add(a, b):\n    return b + a").outcome is Outcome.RIGHT
    finally:
        code_lib._run.cache_clear()
    assert len(runs) == 1


def test_canonical_programs():
    same = ["def f(x):\n    return 'a'  # why\n", 'def f(x):\n\n    return "a"']
    assert canonical_code(same[0], ADD) == canonical_code(same[1], ADD)
    assert canonical_code("def f(x: ", ADD) == "def f(x:"
    assert canonical_code("(" * 5000, ADD) == "(" * 5000
    assert not TASK.same("a", "a")


def test_two_right_programs_are_two_candidates_and_both_are_right():
    """Joined, their votes would add up by a verdict that nobody has who asks the system."""
    from gradejax.systems.questions import candidates_of

    replies = ["def add(a, b):\n    return a + b", "def add(a, b):\n    return b + a",
               "def add(a, b):\n    return 0", None]  # fmt: skip
    judged = [None if r is None else judge(r) for r in replies]
    texts, said, gold = candidates_of(ADD, TASK, judged)
    assert said == [0, 1, 2, -1] and gold == {0, 1} and len(texts) == 3
    again = [judge(replies[0]), judge("def add(a,b):\n    return a + b  # the same"), None]
    assert candidates_of(ADD, TASK, again)[1:] == ([0, 0, -1], {0})  # one program, one candidate


@pytest.mark.parametrize("number", [0, 37, 163])
def test_published_solutions(shared, number):
    from gradejax.tasks.benchmarks import load, task_named

    example = load("humaneval", folder=f"{shared}/data").examples[number]
    task = task_named("humaneval")
    right = task.judge(example.answer, "stop", example)
    assert right.outcome is Outcome.RIGHT
    wrong = f"```python\n{example.question}    return None\n```"
    assert task.judge(wrong, "stop", example).outcome is Outcome.WRONG
