"""The sandbox's own process: starts cage and trial, watches the limits, ends everything.

Started afresh for each check with a job on standard input; writes one JSON line. It is single
threaded, runs neither tests nor program, and lives until the last descendant is gone.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time

import confine
import seal
import traces
import trial
import wire

_TICK_S = .05
# A tick that took longer was a pause of the whole machine or of this process (SIGSTOP, a suspended
# laptop): the program is not charged for it.
_LONGEST_TICK_S = .5
_OWN_MEMORY = 64 << 20  # of the cage's own two processes, shared pages counted twice
_START_S = 20.0  # for an interpreter to start on a busy machine


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    seal.prctl(seal.PR_SET_DUMPABLE, 0)  # the tests are in this memory
    seal.prctl(seal.PR_SET_CHILD_SUBREAPER, 1)
    limits = job["limits"]
    reasons = []
    for level in confine.LEVELS[0 if limits["namespaces"] else 1 :]:
        cage = Cage(level, job)
        try:
            problem = cage.start()
            if problem is None:
                result = judge(job, cage)
                break
            reasons.append(f"{level}: {problem}")
        finally:
            cage.end()
    else:
        result = {"outcome": "missing", "reason": "no sandbox here: " + "; ".join(reasons)}
    holds = {"network": False, "files": False, "processes": False} | (cage.holds or {})
    result |= {"level": level, "holds": holds, "weaker_because": reasons}
    result["output"] = cage.output[:2000].decode("utf-8", "replace")
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()


class Cage:
    """One program's process, its pipes and what it used."""

    def __init__(self, level: str, job: dict):
        self.level, self.job = level, job
        self.holds = None  # what the level keeps, once known
        self.output = b""  # the head of what was printed
        self.printed = 0  # bytes, of all
        self.elapsed = 0.0  # seconds, pauses left out
        self.seconds = _START_S  # what elapsed may be
        self.trusted = set()  # descendants that are not the program's
        self._last = time.monotonic()
        self.open = []

    def pipe(self):
        ends = os.pipe()
        self.open += ends
        return ends

    def close(self, *fds):
        for fd in fds:
            self.open.remove(fd)
            os.close(fd)

    def start(self) -> str | None:
        """Starts the program's interpreter; returns None, or why this level cannot be had."""
        if self.level == "basic":
            os.mkdir(self.job["home"], 0o700)
        calls_read, self.calls = self.pipe()
        self.replies, replies_write = self.pipe()
        self.printing, output_write = self.pipe()
        status_read, status_write = self.pipe()
        if os.fork() == 0:
            self._start_child(calls_read, replies_write, output_write, status_write)
        self.close(calls_read, replies_write, output_write, status_write)
        report = b""
        while part := os.read(status_read, 4096):  # ends when the interpreter takes over
            report += part
        self.close(status_read)
        # two lines when it failed after it had said what holds
        said = json.loads((report.splitlines() or [b'{"error": "the process ended"}'])[-1])
        if "error" in said:
            return said["error"]
        self.holds = said
        while not (problem := self.tick([self.replies])):
            if self.ready:
                try:
                    wire.read_frame(self.replies, 100)
                    return None
                except (EOFError, OSError, ValueError):
                    break
        self.tick([])
        printed = self.output[-300:].decode(errors="replace")
        return f"the interpreter did not start ({problem}): {printed!r}"

    def _start_child(self, calls, replies, output, status):
        def report(said):
            os.write(status, json.dumps(said).encode() + b"\n")

        # a first process without handlers cannot be signalled from inside its namespace
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        try:
            confine.start(self.level, self.job, calls, replies, output, report)
        except BaseException as error:
            report({"error": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(70)

    def tick(self, watched: list[int]) -> str | None:
        """Waits up to a tick for `watched` (the readable ones are then in `ready`) and looks after
        the program: returns None or the limit that it broke."""
        poller = select.poll()
        for fd in {*watched, self.printing} & set(self.open):
            poller.register(fd, select.POLLIN)
        poller.register(1, 0)  # our reader's end
        events = dict(poller.poll(_TICK_S * 1000))
        now = time.monotonic()
        self.elapsed += min(now - self._last, _LONGEST_TICK_S)
        self._last = now
        self.ready = [fd for fd in watched if fd in events]
        if 1 in events:
            return "nobody waits for the verdict"
        if self.printing in events:
            self.read_output()
        limits = self.job["limits"]
        if self.printed > limits["output"]:
            return f"output: it printed over {limits['output']} bytes"
        if self.elapsed > self.seconds:
            return f"timeout: over {self.seconds:g} s"
        if not self.ready:
            return self._memory() or self._disk()
        return None

    def read_output(self) -> None:
        """Reads what was printed once; blocks when there is nothing."""
        part = os.read(self.printing, 1 << 16)
        self.output = (self.output + part)[:1 << 16]
        self.printed += len(part)
        if not part:
            self.close(self.printing)

    def _memory(self):
        page = resource.getpagesize()
        used = 0
        for pid in set(traces.descendants(os.getpid())) - self.trusted:
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{pid}/statm", encoding="ascii") as file,
            ):
                used += int(file.read().split()[1]) * page
        limit = self.job["limits"]["memory"]
        # each process has `limit` of addresses; together they have as much of real memory
        if used > limit + _OWN_MEMORY:
            return f"memory: over {limit >> 20} MiB in all its processes"
        return None

    def _disk(self):
        if self.level == "namespaces":
            return None  # a tmpfs of that size
        used = traces.stored(self.job["home"], set(traces.descendants(os.getpid())) - self.trusted)
        if used is None or used > self.job["limits"]["disk"]:
            return "disk: it wrote too much, too many files or too deep folders"
        return None

    def end(self) -> None:
        """Ends every descendant, reaps them all and removes what they left."""
        traces.end_descendants()
        for fd in tuple(self.open):
            self.close(fd)
        if self.level == "basic":
            traces.remove(self.job["home"])


def judge(job: dict, cage: Cage) -> dict:
    """Runs the trial against the started cage until there is a verdict or a limit is broken."""
    cage.elapsed, cage.seconds = 0.0, job["limits"]["seconds"]
    verdict_read, verdict_write = cage.pipe()
    pid = os.fork()
    if pid == 0:
        seal.prctl(seal.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(1)
        cpu = job["limits"]["cpu_seconds"] + 5
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        trial.become(job, cage.calls, cage.replies, verdict_write)
    cage.trusted.add(pid)
    cage.close(verdict_write)
    result = {"code": None, "calls": 0}
    while "outcome" not in result:
        broken = cage.tick([verdict_read])
        if broken:
            result |= {"outcome": "wrong", "reason": broken}
        elif cage.ready:
            try:
                result |= wire.read_frame(verdict_read, 64 << 20)
            except EOFError:
                result |= {"outcome": "wrong", "reason": "the trial broke down on the reply"}
    if cage.printing in cage.open and select.select([cage.printing], [], [], 0)[0]:
        cage.read_output()  # the pipe holds 64 KiB, so once is all
    return result | {"seconds": cage.elapsed}


if __name__ == "__main__":
    main()
