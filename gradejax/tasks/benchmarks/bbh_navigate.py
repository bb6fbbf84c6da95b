"""BIG-Bench Hard, Navigate: do these steps lead back? (Suzgun et al. 2022, arXiv 2210.09261)."""

import dataclasses

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column

OPTIONS = ("Yes", "No")
_LISTED = "\nOptions:\n- Yes\n- No"


def from_hub(row, place: Place) -> dict:
    answer = column(row, "target").strip()
    if answer not in OPTIONS:
        raise RowError(f"expected the target to be one of {OPTIONS}")
    return {
        "id": f"bbh-navigate-{place.index}",
        "question": column(row, "input"),
        "choices": list(OPTIONS),
        "answer": answer,
    }


def finish(example: Example) -> Example:
    """The stem lists the options itself; prompts list them with letters, so once is enough."""
    return dataclasses.replace(example, question=example.question.removesuffix(_LISTED))


BBH_NAVIGATE = BenchmarkSpec(
    name="bbh_navigate",
    hub_id="lukaemon/bbh",
    # the repository itself holds a loading script, which `datasets` no longer runs
    revision="refs/convert/parquet",
    kind="choice",
    slot="choice",
    subsets=("navigate",),
    splits={"test": "test"},
    counts={("navigate", "test"): 250},
    from_hub=from_hub,
    finish=finish,
)
