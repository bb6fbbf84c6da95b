"""The corpus of hostile programs: each is stopped in bounded time, is not correct, leaves nothing.

A program of `hostile/` returns the right sum only if its attack worked, so "correct" means that the
sandbox has a hole. Names in capitals (MARKER, PORT, ABSTRACT) stand for things that the test laid
out. "Stopped by:" in the docstring is a pattern of the reason.
"""

import concurrent.futures
import contextlib
import ctypes
import gc
import os
import pathlib
import re
import resource
import socket
import time

import pytest

from gradejax.tasks.sandbox import Limits, Result, check

FOLDER = pathlib.Path(__file__).parent / "hostile"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
TESTS = """
MAGIC_EXPECTED = 5
assert add(2, 3) == MAGIC_EXPECTED
assert add(-1, 1) == 0
assert add(10, 4) == 14
"""
LIMITS = {"seconds": 1.5, "memory": 256 << 20, "disk": 8 << 20, "processes": 12}
LEVELS = ("namespaces", "basic")
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
PR_SET_CHILD_SUBREAPER = 36


def source(name: str, **laid: str) -> str:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return re.sub(r"\b(MARKER|PORT)\b|(?<=\\0)ABSTRACT", lambda match: laid[match[0]], text)


def own_children() -> set[int]:
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            text = pathlib.Path(f"/proc/self/task/{thread}/children").read_text()
            found |= set(map(int, text.split()))
    return found


def state() -> dict:
    """What may not grow by running programs."""
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": own_children(),  # zombies too
        "largest child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "files": {
            path for folder in SHARED_FOLDERS if os.path.isdir(folder)
            for path in os.listdir(folder) if "sandbox" in path
        },
        "home": set(os.listdir(os.path.expanduser("~"))),
    }  # fmt: skip


class Run:
    """The whole corpus at one level, four programs at a time."""

    def __init__(self, level: str, folder: pathlib.Path):
        self.level = level
        self.marker = folder / "secret.txt"
        self.marker.write_text("secret")
        folder.chmod(0o755)
        abstract, server = f"sandbox-{os.getpid()}-{level}", socket.create_server(("127.0.0.1", 0))
        local = socket.socket(socket.AF_UNIX)
        local.bind("\0" + abstract)
        local.listen()
        laid = {"MARKER": str(self.marker), "PORT": str(server.getsockname()[1]),
                "ABSTRACT": abstract}  # fmt: skip
        limits = Limits(**LIMITS, namespaces=level == "namespaces")
        # whatever a supervisor loses comes to this process, where it can be seen
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self.before = state()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                work = {name: pool.submit(self._timed, source(name, **laid), limits)
                        for name in PROGRAMS}  # fmt: skip
                self.results = {name: future.result() for name, future in work.items()}
            self.after = state()
        finally:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        server.setblocking(False)
        local.setblocking(False)
        self.visitors = []
        for listener in (server, local):
            try:
                self.visitors.append(listener.accept())
            except BlockingIOError:
                listener.close()

    @staticmethod
    def _timed(text: str, limits: Limits) -> tuple[Result, float]:
        start = time.monotonic()
        return check(text, TESTS, "add", limits=limits, find=False), time.monotonic() - start


@pytest.fixture(scope="module", params=LEVELS)
def corpus(request, tmp_path_factory):
    return Run(request.param, tmp_path_factory.mktemp("marker"))


def test_the_corpus_is_large_and_its_tests_can_be_passed():
    assert len(PROGRAMS) >= 25
    good = check("def add(a, b):\n    return a + b", TESTS, "add", limits=Limits(**LIMITS))
    assert (good.outcome, good.calls) == ("correct", 3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_is_wrong_and_stopped(corpus, name):
    result, seconds = corpus.results[name]
    assert result.outcome == "wrong", result
    said = re.search(r'Stopped by: ([^"\n]+)"', source(name, MARKER="", PORT="", ABSTRACT=""))
    # at the basic level a program that has to stay root may start no process and change no mode
    refused = "|Errno 1\\]|Errno 11\\]|new thread" if result.level == "basic" else ""
    if said:
        assert re.search(said[1] + refused, result.reason), result
    assert result.seconds < LIMITS["seconds"] + 1
    # four at a time on a busy machine; a program that is not stopped sleeps 300 s
    assert seconds < 60, seconds
    assert len(result.output.encode()) <= 10_000


def test_nothing_is_left_behind(corpus):
    before, after = corpus.before, corpus.after
    assert after["children"] == before["children"]
    assert after["descriptors"] <= before["descriptors"] + 1
    assert after["files"] <= before["files"]
    assert after["home"] == before["home"]
    assert corpus.marker.read_text() == "secret"
    assert corpus.visitors == []
    # of the supervisors, the largest child since: the programs' memory is not theirs
    assert after["largest child"] <= max(before["largest child"], 2 << 20)


def test_the_level_is_said(corpus):
    for result, _ in corpus.results.values():
        assert result.level == corpus.level or result.weaker_because
        assert result.processes_isolated == (result.level == "namespaces")
