"""Grades the outputs of any tool: a JSONL in, a verdict a line out.

    python -m experiments.grade outputs.jsonl
    python -m experiments.grade outputs.jsonl --data folder_of_benchmarks > verdicts.jsonl

Each line of the file: `benchmark`, `completion` (null where the call failed), `gold`; and, where
there are, `id`, `finish_reason` ("length" marks a cut reply), `error` (the call failed) and
`choices`. `--data` names a folder of benchmark files (default: the environment variable
GRADEJAX_DATA); an `id` found there brings the item's options, tests and entry point, and its answer
where `gold` is absent. Where a `gold` contradicts the item's own, the item's decides. An `id` that
the benchmark's file lacks is graded by the line alone. Both are said on stderr and counted; a file
that holds none of the ids asked is an error. So is a value of another kind than its key's, before
any verdict: file and line are named.

Each line of the output: `id`, `outcome` (correct, wrong, no_answer, truncated or missing), `answer`
(as read; null unless correct or wrong), `benchmark`, and `strict`, the same under the strict
reading (an ANSWER: line, a box, `####`); `item` says "not_found" or "contradicting" where that is
so. The last lines, one per benchmark, have no `id`: `counts` and `strict_counts` of the outcomes
under the flexible and the strict reading, `accuracy` under both (over the calls that are not
missing), and with `--data` `ids`: how many were found, not found, and contradicting.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from experiments.grade_ids import NO_FOLDER, Matched, check_found, counted_ids, look_up, warnings_of
from experiments.grade_items import Items, example_of
from experiments.grade_rows import print_line, read_rows
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import (
    CUT_REASONS,
    MISSING_CALL,
    Example,
    Judged,
    Outcome,
    Task,
    after_thinking,
)
from gradejax.tasks.data import DATA_FOLDER
from gradejax.tasks.prompts import open_format

# Kinds whose verdict is computed in another process: several at a time, from threads.
_ELSEWHERE = ("code", "math")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.grade", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", help="JSONL: benchmark, completion, gold, id")
    parser.add_argument("--data", default=os.environ.get(DATA_FOLDER), help="folder of benchmarks")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    args = parser.parse_args(argv)
    try:
        rows = list(read_rows(args.file))
        items = Items(args.data)
        matched = look_up(rows, items)
        check_found(matched, items)
        for warning in warnings_of(matched, items):
            print(f"warning: {warning}", file=sys.stderr)
        judged = []
        for match, verdict in zip(matched, grade(matched, workers=args.workers), strict=True):
            _print_verdict(match, verdict)
            judged.append(verdict)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in counts(matched, judged):
        print_line(line)
    return 0


def grade(matched: list[Matched], *, workers: int = 1) -> Iterator[Judged]:
    """The verdicts of lines, in order; formulas and programs are checked by several workers.

    Raises:
      ValueError: a line cannot be graded; before the first verdict.
    """
    examples = [_ready(match) for match in matched]
    tasks: dict[str, Task] = {}
    with ThreadPoolExecutor(max(1, workers)) as threads:
        started: list[Judged | Future] = []
        for (row, item, kind, _), example in zip(matched, examples, strict=True):
            if example is None:
                started.append(threads.submit(judge_code, row, item))
                continue
            task = tasks.setdefault(kind, make_task(kind, kind, open_format))
            if kind in _ELSEWHERE:
                started.append(threads.submit(judge, row, task, example))
            else:
                started.append(judge(row, task, example))
        for verdict in started:
            yield verdict.result() if isinstance(verdict, Future) else verdict


def judge(row: Mapping[str, Any], task: Task, example: Example) -> Judged:
    """The verdict on one line; a failed call (no completion, or an error) is missing."""
    if _failed(row):
        return MISSING_CALL
    return task.judge(row["completion"], row.get("finish_reason"), example)


def judge_code(row: Mapping[str, Any], item: Mapping[str, Any] | None) -> Judged:
    """The verdict on one program: run against the item's tests, in the sandbox."""
    if _failed(row):
        return MISSING_CALL
    if row.get("finish_reason") in CUT_REASONS:
        return Judged(Outcome.TRUNCATED, None, None)
    visible = after_thinking(row["completion"] or "")
    if not visible or not visible.strip():
        return Judged(Outcome.NO_ANSWER, None, None)
    try:
        from gradejax.tasks.sandbox import check
    except ImportError as error:
        raise ValueError(f"programs cannot be run: {error}") from error
    result = check(visible, item["test"], item["entry_point"], prompt=item.get("question") or "")
    outcome = Outcome(result.outcome)
    code = result.code if outcome in (Outcome.RIGHT, Outcome.WRONG) else None
    return Judged(outcome, code, code)


def _ready(match: Matched) -> Example | None:
    """The question of a line that can be graded; None for a program.

    Raises:
      ValueError: it cannot be; names file and line.
    """
    row, item, kind, _ = match
    if kind != "code":
        return example_of(row, item, kind)
    to_run = not _failed(row) and row.get("finish_reason") not in CUT_REASONS
    visible = after_thinking(row["completion"] or "") if to_run else None
    held = item or {}
    if visible and visible.strip() and not (held.get("test") and held.get("entry_point")):
        raise ValueError(
            f"{row['where']}: a program is graded by its item's tests; expected id {row['id']!r} "
            f"of {row['benchmark']!r} with 'test' and 'entry_point' in the folder of --data"
        )
    return None


def counts(matched: list[Matched], verdicts: list[Judged]) -> Iterator[dict[str, Any]]:
    """One line per benchmark, in the order of first appearance: n, outcomes of both readings."""
    of: dict[str, list[tuple[Matched, Judged]]] = {}
    for match, verdict in zip(matched, verdicts, strict=True):
        of.setdefault(match.row["benchmark"], []).append((match, verdict))
    for benchmark, pairs in of.items():
        judged = [verdict for _, verdict in pairs]
        line: dict[str, Any] = {"benchmark": benchmark, "n": len(judged)}
        line["counts"] = _count(j.outcome for j in judged)
        line["cannot_compare"] = sum(j.cannot_compare for j in judged)
        strict = None
        if all(j.strict is not None for j in judged):
            strict = line["strict_counts"] = _count(j.strict for j in judged)
        line["accuracy"] = {"strict": _accuracy(strict), "flexible": _accuracy(line["counts"])}
        if all(match.state != NO_FOLDER for match, _ in pairs):
            line["ids"] = counted_ids(match for match, _ in pairs)
        yield line


def _accuracy(found: Mapping[str, int] | None) -> float | None:
    """Correct of those that are not missing; None when nothing is known."""
    answered = 0 if found is None else sum(found.values()) - found["missing"]
    return round(found["correct"] / answered, 6) if answered else None


def _count(outcomes) -> dict[str, int]:
    found = Counter(outcomes)
    return {outcome.value: found[outcome] for outcome in Outcome}


def _failed(row: Mapping[str, Any]) -> bool:
    if row.get("error"):
        return True
    # all tokens went to thinking, or the limit came first: a reply, though an empty one
    return row["completion"] is None and not row.get("finish_reason")


def _print_verdict(match: Matched, judged: Judged) -> None:
    row = match.row
    line = {"id": row["id"], "outcome": judged.outcome.value, "answer": judged.answer}
    line["benchmark"] = row["benchmark"]
    if judged.strict is not None:
        line["strict"] = {"outcome": judged.strict.value, "answer": judged.strict_answer}
    if judged.cannot_compare:
        line["cannot_compare"] = True
    if match.said:
        line["item"] = match.state
    print_line(line)


if __name__ == "__main__":
    sys.exit(main())
