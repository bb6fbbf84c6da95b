"""The caller's side of the sandbox: one check is one supervisor process, started and waited for."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import secrets
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass

_HERE = pathlib.Path(__file__).parent
_START = "import sys; sys.path[:0] = [sys.argv[1]]; import supervisor; supervisor.main()"
# What a supervisor may take besides the program's time: three interpreters to start, all to end.
_SLACK_S = 60


@dataclass(frozen=True)
class Limits:
    """What a program may use; over any of these it is wrong.

    Attributes:
      seconds: wall time of program and tests together, pauses of the machine left out.
      cpu_seconds: CPU time of each of its processes; None: as many as `seconds`, rounded up.
      memory: bytes of addresses of each process, and of real memory of all together.
      disk: bytes of its home, and of one file.
      processes: processes and threads at one time.
      output: bytes it may print.
      message: bytes of one call or one returned value.
      packages: are installed packages visible? Off by default: they may hold a benchmark's own
        solutions, and what is installed must not decide a score.
      namespaces: False goes straight to the basic level.
      files_may_be_open: True runs programs even where nothing can keep them from this user's files
        (no namespaces, no Landlock). Never for a program started by root.
    """

    seconds: float = 10.0
    cpu_seconds: int | None = None
    memory: int = 512 << 20
    disk: int = 32 << 20
    processes: int = 16
    output: int = 1 << 20
    message: int = 8 << 20
    packages: bool = False
    namespaces: bool = True
    files_may_be_open: bool = False

    def __post_init__(self):
        for name in ("seconds", "memory", "disk", "processes", "output", "message"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"expected {name} above 0, got {value}")
        if self.memory < 64 << 20:
            raise ValueError(f"expected memory of at least 64 MiB (Python's), got {self.memory}")


@dataclass(frozen=True)
class Result:
    """The verdict on one program.

    Attributes:
      outcome: "correct", "wrong", "no_answer" (no code in the reply) or "missing" (the sandbox or
        the tests failed, which says nothing about the program).
      reason: why not correct, in words; limits begin with their name ("timeout: ...").
      code: the program as found in the reply, None when there is none.
      calls: calls of the program that the tests made; 0 when a limit was broken.
      seconds: time that program and tests took.
      level: "namespaces" or "basic".
      network_isolated: it could reach no network.
      files_isolated: it could reach no file but the interpreter's and its home.
      processes_isolated: it could see no other process.
      weaker_because: why a better level was not to be had; empty at the best.
      output: the head of what it printed.
    """

    outcome: str
    reason: str
    code: str | None
    calls: int
    seconds: float
    level: str
    network_isolated: bool
    files_isolated: bool
    processes_isolated: bool
    weaker_because: tuple[str, ...]
    output: str


def check(
    reply: str,
    tests: str,
    entry_point: str,
    *,
    prompt: str = "",
    limits: Limits = Limits(),
    find: bool = True,
) -> Result:
    """Runs the program in `reply` against `tests`, away from everything. May be called in threads.

    Args:
      reply: the visible reply of a model, or code.
      tests: Python that asserts, either at top level (`assert add(2, 3) == 5`) or in a function
        `check(candidate)` (HumanEval). Trusted. Arguments and results are plain values (see
        wire.py) and go by value: changes a program makes to its arguments are not seen. Functions
        cannot be passed to the program; a test that tries makes the outcome "missing".
      entry_point: the function asked for. Other names that the tests use and nobody defines are
        taken from the program as functions, too.
      prompt: HumanEval's prompt: code up to the signature and docstring of the function. Its
        imports and helper functions are given to the program and, apart from it, to the tests.
      find: False takes `reply` as the program itself, as it stands.
    Raises: RuntimeError where there is no Linux, ValueError for an entry point that is no name.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"the sandbox needs Linux, this is {sys.platform}")
    if not entry_point.isidentifier():
        raise ValueError(f"expected the name of a function as entry point, got {entry_point!r}")
    settings = dataclasses.asdict(limits)
    settings["cpu_seconds"] = limits.cpu_seconds or math.ceil(limits.seconds)
    home = pathlib.Path(tempfile.gettempdir()) / f"sandbox-{secrets.token_hex(8)}"
    job = _interpreter(limits.packages) | {
        "reply": reply, "tests": tests, "entry_point": entry_point, "prompt": prompt, "find": find,
        "limits": settings, "home": str(home),
    }  # fmt: skip
    said = _supervise(job, limits.seconds + _SLACK_S)
    holds = said.get("holds", {})
    return Result(
        outcome=said["outcome"],
        reason=said["reason"],
        code=said.get("code"),
        calls=said.get("calls", 0),
        seconds=round(said.get("seconds", 0.0), 3),
        level=said.get("level", ""),
        network_isolated=holds.get("network", False),
        files_isolated=holds.get("files", False),
        processes_isolated=holds.get("processes", False),
        weaker_because=tuple(said.get("weaker_because", ())),
        output=said.get("output", ""),
    )


def _supervise(job: dict, seconds: float) -> dict:
    """One supervisor's answer; "missing" when it gives none."""
    process = subprocess.Popen(
        [job["python"], "-I", "-S", "-c", _START, str(_HERE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"LANG": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )
    said, errors, message = b"", b"", json.dumps(job).encode()
    try:
        # in short waits, so that a pause of this process (SIGSTOP) does not use up the whole time
        for _ in range(math.ceil(seconds)):
            try:
                said, errors = process.communicate(message, timeout=1)
                break
            except subprocess.TimeoutExpired:
                message = None  # it goes on with what it was given first
    finally:
        if process.returncode is None:
            process.terminate()  # it then ends what it started
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        return json.loads(said)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no word"]
        return {
            "outcome": "missing",
            "reason": f"the sandbox ended with {process.returncode}: {last[0]}",
        }


@functools.cache
def _interpreter(packages: bool) -> dict:
    """What of this Python the program needs: its path, folders, and the source it starts with."""
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    hidden = [f"{folder}/{name}-packages" for folder in folders for name in ("site", "dist")]
    hidden += ["/usr/lib/python3/dist-packages"]
    library = os.path.join(
        sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or ""
    )
    visible = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    paths = [python, *folders, *([library] if os.path.isfile(library) else [])]
    if sys.base_prefix not in ("/", "/usr"):
        paths.insert(0, f"{sys.base_prefix}/lib")  # what its extension modules are linked to
    source = [(_HERE / name).read_text(encoding="utf-8") for name in ("wire.py", "runner.py")]
    if packages:
        source.append(f"sys.path += {visible!r}\n")
    source.append(f"serve(read_frame, write_frame, pack, unpack, {Limits.message})\n")
    return {
        "python": python,
        "paths": [*paths, *(visible if packages else [])],
        "hidden": [] if packages else sorted(set(hidden)),
        "source": "\n".join(source),
    }
