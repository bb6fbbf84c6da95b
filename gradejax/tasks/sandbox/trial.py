"""The trusted process that runs a benchmark's tests against the caged program.

It alone knows the tests and what they expect. `candidate` is a proxy: it sends the arguments over
the pipe and gives back what the program says the call returned, as plain values of exact types, so
that an object equal to everything, a patched `assert` or a forged message can at most be a wrong
value. Arguments go by value: what a program does to them is not seen here.
"""

import ast
import builtins
import os
import sys

import find
import wire

# In a test's `list(map(candidate, ...))` this would end the loop early instead of failing the test.
_NEVER_RAISED = (StopIteration, StopAsyncIteration)


class ProgramFailed(Exception):
    """The program can answer no more; whatever the tests make of it, it is wrong."""


class ProgramError(Exception):
    """An exception of the program that is no built-in one."""


class Program:
    """The caged program's functions, called over two pipes."""

    def __init__(self, calls: int, replies: int, limit: int):
        self._calls, self._replies, self._limit = calls, replies, limit
        self.count = 0
        self.failure = None  # why it can answer no more
        self.unsendable = None  # why a test cannot be served at all
        self.raised = None  # its last exception, as raised here

    def load(self, sources: list[str]) -> None:
        self._ask(sources, "while loading the program")

    def function(self, name: str):
        """A stand-in for the program's function `name`."""

        def proxy(*arguments, **keywords):
            try:
                message = [name, wire.pack(list(arguments)), wire.pack(keywords)]
            except TypeError as error:
                self.unsendable = f"a test passes {name} what cannot be sent: {error}"
                raise
            self.count += 1
            return self._ask(message, f"in call {self.count} of {name}")

        proxy.__name__ = name
        return proxy

    def _ask(self, message, where: str):
        if self.failure:
            raise ProgramFailed(self.failure)
        try:
            wire.write_frame(self._calls, message)
            kind, *rest = wire.read_frame(self._replies, self._limit)
            if kind == "value":
                (value,) = rest
                return wire.unpack(value)
            if kind != "raised":
                raise wire.BadFrame(f"unknown message {str(kind)[:40]!r}")
            name, text = map(str, rest)
        except (EOFError, OSError):
            self.failure = f"the program ended {where}"
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            self.failure = f"no reply of plain values {where}: {str(error)[:200]}"
        else:
            self.raised = _exception(name, text, where)
            raise self.raised
        raise ProgramFailed(self.failure)


def run(job: dict, program: Program, found) -> dict:
    """Runs the tests of `job` and returns {"outcome", "reason", "calls"}.

    `found` is called with the code of the reply once, before any of it runs.

    Raises nothing: whatever happens while the tests run is the program's failure, except tests that
    do not compile, name what nobody defines, never call the program or pass what cannot be sent.
    Those are "missing": they say nothing about the program.
    """
    entry_point, prompt = job["entry_point"], job["prompt"]
    code = find.find_code(job["reply"], entry_point, prompt) if job["find"] else job["reply"]
    found(code)
    if code is None:
        return {"outcome": "no_answer", "reason": "no code in the reply", "calls": 0}
    try:
        tree = ast.parse(job["tests"])
        tests = compile(tree, "<tests>", "exec")
        helpers = find.preamble(prompt, entry_point)
        namespace = {"__name__": "tests"}
        exec(compile(helpers, "<prompt>", "exec"), namespace)
    except Exception as error:
        reason = f"the tests cannot be run: {type(error).__name__}: {error}"
        return {"outcome": "missing", "reason": reason, "calls": 0}
    # helpers of the prompt are the data set's own; only what they leave open is the program's
    wanted = find.free_names(tree) - set(namespace) | {entry_point}
    namespace |= {name: program.function(name) for name in wanted}
    namespace["candidate"] = namespace[entry_point]
    outcome, reason = "correct", ""
    try:
        program.load([helpers, code])
        exec(tests, namespace)
        # HumanEval's tests are a function of the candidate, others are bare assertions
        if "check" not in wanted and callable(namespace.get("check")):
            namespace["check"](namespace[entry_point])
    except BaseException as error:
        outcome, reason = "wrong", _why(error, program)
        if type(error) is NameError and error is not program.raised:
            outcome, reason = "missing", f"the tests cannot be run: {error}"
    if program.failure:
        outcome, reason = "wrong", program.failure
    elif program.unsendable:
        outcome, reason = "missing", program.unsendable
    elif outcome == "correct" and not program.count:
        outcome, reason = "missing", f"the tests never called {entry_point}"
    return {"outcome": outcome, "reason": reason, "calls": program.count}


def _exception(name: str, text: str, where: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in _NEVER_RAISED:
        try:
            return kind(f"{text} ({where})")
        except TypeError:  # UnicodeDecodeError and the like want more
            pass
    return ProgramError(f"{name}: {text} ({where})")


def _why(error: BaseException, program: Program) -> str:
    if error is program.raised or isinstance(error, ProgramFailed):
        return f"the program raised {type(error).__name__}: {error}"
    line, trace = 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, AssertionError):
        return f"the assertion in line {line} of the tests failed"
    return f"line {line} of the tests raised {type(error).__name__}: {str(error)[:200]}"


def become(job: dict, calls: int, replies: int, verdict: int) -> None:
    """Runs the tests in this process and ends it; writes code and result to `verdict`."""
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        program = Program(calls, replies, job["limits"]["message"])
        result = run(job, program, lambda code: wire.write_frame(verdict, {"code": code}))
    except BaseException as error:
        # not the tests' exception: `run` holds those
        reason = f"the reply could not be read: {type(error).__name__}"
        result = {"outcome": "wrong", "reason": reason, "calls": 0}
    try:
        wire.write_frame(verdict, result)
    finally:
        os._exit(0)
