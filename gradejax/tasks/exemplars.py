"""Worked examples: chosen once for all questions, from training or development items only.

Every question gets the same ones, so that a model reads their beginning once; a question that is
among them gets the next in line instead (fault F07: never the item itself, nor a copy of it).
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence

from gradejax.tasks.base import Example, Task
from gradejax.tasks.prompts import question_text
from gradejax.tasks.splits import item_key

# meta key of the rendered worked examples
EXEMPLARS = "exemplars"


def rendered(example: Example, task: Task, working: Callable[[Example], str]) -> str:
    """One worked example: its question, the solution its file has, and the answer as asked for."""
    solution = working(example)
    lines = [f"Question: {question_text(example).rstrip()} {task.format_slot(example)}"]
    return "\n".join([*lines, *([solution] if solution else []), f"ANSWER: {example.answer}"])


def with_exemplars(
    examples: Sequence[Example],
    pool: Sequence[Example],
    task: Task,
    working: Callable[[Example], str],
    *,
    k: int,
    seed: int = 0,
    key: str | None = None,
) -> tuple[Example, ...]:
    """`examples`, each with k worked examples in its meta, which prompts then begin with.

    Where the pool has just k and a copy of the question is among them (MMLU has such items in its
    "dev"), that question gets one fewer.

    Args:
      examples: the questions.
      pool: where worked examples come from; never a test set.
      task: of both.
      working: the worked solution of an item of the pool, "" where there is none.
      k: how many.
      seed: which.
      key: entry of `meta` that a question and its worked examples share, e.g. "subject".

    Raises:
      ValueError: the pool has too few others; the question's id and the numbers are named.
    """
    if k < 1:
        raise ValueError(f"expected k >= 1 worked examples, got {k}")
    ranked: dict[object, list[tuple[str, str]]] = {}

    def rank(entry: tuple[str, Example]) -> tuple[str, str]:
        return hashlib.sha256(f"{seed}\0{entry[0]}".encode()).hexdigest(), entry[1].id

    for text, item in sorted(((item_key(item), item) for item in pool), key=rank):
        group = item.meta.get(key) if key else None
        ranked.setdefault(group, []).append((text, rendered(item, task, working)))
    out = []
    for example in examples:
        own = item_key(example)
        group = example.meta.get(key) if key else None
        there = ranked.get(group, [])
        others = list(itertools.islice((shown for text, shown in there if text != own), k))
        if len(others) < k and (len(there) < k or not others):
            of = f" of {key} {group!r}" if key else ""
            raise ValueError(
                f"question {example.id!r}: expected {k} other items{of} to be worked examples, "
                f"got {len(others)}"
            )
        meta = {**example.meta, EXEMPLARS: "\n\n".join(others)}
        out.append(dataclasses.replace(example, meta=meta))
    return tuple(out)
