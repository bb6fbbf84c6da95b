"""MMLU-Pro: 3 to 10 options (Wang et al. 2024, arXiv 2406.01574)."""

import dataclasses
import re

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column, letter_of, texts
from gradejax.tasks.choices import LETTERS

_OPENING = re.compile(r"^A:\s*(?:Let's think step by step\.\s*)?")
_CLOSING = re.compile(r"\s*The answer is \([A-J]\)\.?\s*$")


def from_hub(row, place: Place) -> dict:
    """The published letter is the gold. `answer_index` should say the same; where it does not, the
    item contradicts itself and its meta says so."""
    del place
    options = texts(row, "options")
    answer = column(row, "answer").strip()
    if len(answer) != 1 or answer not in "ABCDEFGHIJ"[: len(options)]:
        raise RowError(f"expected the letter of one of {len(options)} options")
    common = {
        "id": column(row, "question_id", int),
        "question": column(row, "question"),
        "choices": options,
        "answer": answer,
        "category": column(row, "category"),
        "src": column(row, "src"),
    }
    if row.get("cot_content"):
        common["cot_content"] = row["cot_content"]
    index = row.get("answer_index")
    if index is not None and letter_of(index, options) != answer:
        common["contradiction"] = f"answer_index says {letter_of(index, options)}"
    return common


def finish(example: Example) -> Example:
    """Fillers "N/A" at the end are no options."""
    choices = example.choices
    while choices[-1] == "N/A" and len(choices) > 2 and example.answer != LETTERS[len(choices) - 1]:
        choices = choices[:-1]
    return dataclasses.replace(example, choices=choices)


def working(example: Example) -> str:
    """The published chain of thought of the validation items, without its last sentence."""
    return _CLOSING.sub("", _OPENING.sub("", example.meta.get("cot_content", "")))


MMLU_PRO = BenchmarkSpec(
    name="mmlu_pro",
    hub_id="TIGER-Lab/MMLU-Pro",
    revision="b189ec765aa7ed75c8acfea42df31fdae71f97be",
    kind="choice",
    slot="mmlu_pro",
    splits={"validation": "validation", "test": "test"},
    counts={("default", "validation"): 70, ("default", "test"): 12032},
    from_hub=from_hub,
    finish=finish,
    exemplars="validation",
    exemplar_key="category",
    working=working,
)
