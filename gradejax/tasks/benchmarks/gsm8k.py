"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168)."""

import re

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column

_CALCULATOR = re.compile(r"<<[^<>]*>>")


def from_hub(row, place: Place) -> dict:
    """`answer` is the solution; the gold, maybe with commas, stands after its last "#### "."""
    solution = column(row, "answer")
    _, mark, gold = solution.rpartition("####")
    if not mark or not gold.strip():
        raise RowError("expected an answer after '#### '")
    return {
        "id": f"gsm8k-{place.split}-{place.index}",
        "question": column(row, "question"),
        "choices": None,
        "answer": gold.strip().replace(",", ""),
        "solution": solution,
    }


def working(example: Example) -> str:
    """The published solution without calculator marks and the final line."""
    solution = example.meta.get("solution", "").rpartition("####")[0]
    return _CALCULATOR.sub("", solution).strip()


GSM8K = BenchmarkSpec(
    name="gsm8k",
    hub_id="openai/gsm8k",
    revision="cc7b047b6e5bb11b4f1af84efc572db110a51b3c",
    kind="number",
    slot="gsm8k",
    subsets=("main",),
    splits={"train": "train", "test": "test"},
    counts={("main", "train"): 7473, ("main", "test"): 1319},
    from_hub=from_hub,
    exemplars="train",
    working=working,
)
