"""How long HumanEval takes in the sandbox, and what a long run leaves: one JSON line each.

    python -m experiments.bench.sandbox --data FOLDER [--workers 2] [--row 1000]

FOLDER holds humaneval.test.jsonl. All reference solutions are checked at each level, then one
program `--row` times.
"""

import argparse
import collections
import json
import os
import pathlib
import resource
import time
from concurrent.futures import ThreadPoolExecutor

from gradejax.tasks.sandbox import Limits, check


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.sandbox", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", required=True, help="folder with humaneval.test.jsonl")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--row", type=int, default=1000, help="checks in a row, to look for leaks")
    options = parser.parse_args()
    lines = (pathlib.Path(options.data) / "humaneval.test.jsonl").read_text(encoding="utf-8")
    items = [json.loads(line) for line in lines.splitlines()]
    for namespaces in (True, False):

        def run(item, limits=Limits(namespaces=namespaces)):
            return check(
                item["answer"], item["test"], item["entry_point"],
                prompt=item["question"], limits=limits,
            )  # fmt: skip

        results, seconds, cpu = timed(run, items, options.workers)
        counts = collections.Counter(result.outcome for result in results)
        report("humaneval", results[0].level, len(items), seconds, cpu, outcomes=dict(counts))
    before = left()
    good = "def add(a, b):\n    return a + b"
    results, seconds, cpu = timed(
        lambda _: check(good, "assert add(2, 3) == 5", "add"), range(options.row), options.workers
    )
    wrong = sum(result.outcome != "correct" for result in results)
    report("in a row", results[0].level, options.row, seconds, cpu, wrong=wrong,
           before=before, after=left())  # fmt: skip


def timed(function, items, workers):
    start, cpu = time.perf_counter(), children_seconds()
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(function, items))
    return results, time.perf_counter() - start, children_seconds() - cpu


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def left() -> dict[str, int]:
    """What this process holds: descriptors, resident memory; and the machine's processes, files."""
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident_mib": resident * resource.getpagesize() >> 20,
        "sandbox_files": sum(name.startswith("sandbox-") for name in os.listdir("/tmp")),
        "children": sum(
            len(pathlib.Path(f"/proc/self/task/{thread}/children").read_text().split())
            for thread in os.listdir("/proc/self/task")
        ),
    }


def report(bench, level, checks, seconds, cpu, **more):
    print(json.dumps({
        "bench": f"sandbox: {bench}", "level": level, "checks": checks, "wall_s": round(seconds, 1),
        "cpu_s": round(cpu, 1), "cpu_ms_each": round(1000 * cpu / checks, 1), **more,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
