"""ARC-Challenge: science questions of schools (Clark et al. 2018, arXiv 1803.05457)."""

from collections.abc import Mapping

from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column, letter_of, texts
from gradejax.tasks.data import gold_index


def from_hub(row, place: Place) -> dict:
    """The gold is the place of `answerKey` among the row's own labels (A-E, or 1-4; 3 to 5)."""
    del place
    choices = column(row, "choices", Mapping)
    options, labels = texts(choices, "text"), texts(choices, "label")
    if len(labels) != len(options):
        raise RowError(f"expected a label for each of {len(options)} options, got {len(labels)}")
    key = column(row, "answerKey")
    try:
        place_of_gold = gold_index(labels, key)
    except ValueError as error:
        raise RowError(str(error)) from error
    return {
        "id": column(row, "id"),
        "question": column(row, "question"),
        "choices": options,
        "answer": letter_of(place_of_gold, options),
        "orig_labels": labels,
        "orig_answer_key": key,
    }


ARC_CHALLENGE = BenchmarkSpec(
    name="arc_challenge",
    hub_id="allenai/ai2_arc",
    revision="210d026faf9955653af8916fad021475a3f00453",
    kind="choice",
    slot="choice",
    subsets=("ARC-Challenge",),
    splits={"train": "train", "validation": "validation", "test": "test"},
    counts={
        ("ARC-Challenge", "train"): 1119,
        ("ARC-Challenge", "validation"): 299,
        ("ARC-Challenge", "test"): 1172,
    },
    from_hub=from_hub,
    exemplars="train",
)
