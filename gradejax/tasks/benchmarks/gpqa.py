"""GPQA: graduate-level questions (Rein et al. 2023, arXiv 2311.12022).

The authors ask that no item appears in plain text on the web: nothing here prints one. The hub
gives the right answer first, so the options are always shuffled, by a seed of the record's own id.
"""

from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, column
from gradejax.tasks.shuffle import order_of

_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def from_hub(row, place: Place) -> dict:
    """`order[i]` is the hub's place of the option shown at place i; 0 is the right one."""
    del place
    record = column(row, "Record ID")
    options = [column(row, name).strip() for name in ("Correct Answer", *_WRONG)]
    order = order_of(record, len(options), seed=0)
    return {
        "id": record,
        "question": column(row, "Question").strip(),
        "choices": [options[i] for i in order],
        "answer": "ABCD"[order.index(0)],
        "order": list(order),
        "subdomain": row.get("Subdomain"),
        "domain": row.get("High-level domain"),
    }


GPQA = BenchmarkSpec(
    name="gpqa",
    hub_id="Idavidrein/gpqa",
    revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
    kind="choice",
    slot="gpqa",
    subsets=("gpqa_diamond", "gpqa_main", "gpqa_extended"),
    splits={"test": "train"},  # the hub calls its only split "train"
    counts={
        ("gpqa_diamond", "test"): 198,
        ("gpqa_main", "test"): 448,
        ("gpqa_extended", "test"): 546,
    },
    from_hub=from_hub,
    may_be_shown=False,
)
