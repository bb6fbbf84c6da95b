"""MMLU-Redux 2.0: 100 items of each MMLU subject, annotated again (Gema et al. 2024, 2406.04127).

Two benchmarks over the same rows. `mmlu_redux` has the corrected labels: items that the annotators
found faultless keep theirs, wrong golds are replaced where the annotation names one option, and
everything else (unclear questions or options, several right options or none, annotations that
contradict themselves or name no option) is left out and counted. `mmlu_redux_original` has MMLU's
own labels on all rows.
"""

import dataclasses

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.mmlu import SUBJECTS
from gradejax.tasks.benchmarks.spec import (
    BenchmarkSpec,
    LeftOut,
    Place,
    column,
    letter_of,
    texts,
)

PER_SUBJECT = 100


def corrected_letter(annotation: str | None, options: list[str]) -> str | None:
    """The one option that an annotation names: by index, by letter, or by its own text."""
    text = (annotation or "").strip()
    letters = "ABCDEFGHIJ"[: len(options)]
    if len(text) == 1 and text in letters:
        return text
    if text.isdigit() and len(text) == 1:
        return letters[int(text)] if int(text) < len(options) else None
    places = [i for i, option in enumerate(options) if text and option.strip() == text]
    return letters[places[0]] if len(places) == 1 else None


def from_hub(row, place: Place) -> dict:
    """`answer` is MMLU's index; `correct_answer` free text of the annotator, often an index."""
    options = texts(row, "choices")
    annotation = row.get("correct_answer") or None
    return {
        "id": f"mmlu_redux-{place.subset}-{place.index}",
        "question": column(row, "question"),
        "choices": options,
        "answer": letter_of(column(row, "answer", int), options),
        "subject": place.subset,
        "error_type": column(row, "error_type"),
        "correct_answer": annotation,
        "correct_letter": corrected_letter(annotation, options),
        "source": row.get("source"),
    }


def corrected(example: Example) -> Example:
    """The example with the corrected gold; LeftOut where the annotation gives none."""
    error, letter = example.meta["error_type"], example.meta["correct_letter"]
    if error == "ok":
        if letter not in (None, example.answer):
            raise LeftOut("ok, but the annotation names another option")
        return example
    if error != "wrong_groundtruth":
        raise LeftOut(error)
    if letter is None:
        raise LeftOut("wrong_groundtruth, and no one option named in its place")
    if letter == example.answer:
        raise LeftOut("wrong_groundtruth, but the annotation names the original option")
    return dataclasses.replace(example, answer=letter)


MMLU_REDUX = BenchmarkSpec(
    name="mmlu_redux",
    hub_id="edinburgh-dawg/mmlu-redux-2.0",
    revision="372ea425445d51e1ba1188c56e5e893f8138621f",
    kind="choice",
    slot="choice",
    # one file may hold all subjects: then the subset is "all"
    subsets=("all", *SUBJECTS),
    splits={"test": "test"},
    counts={("all", "test"): PER_SUBJECT * len(SUBJECTS)}
    | {(subject, "test"): PER_SUBJECT for subject in SUBJECTS},
    from_hub=from_hub,
    finish=corrected,
    needs=("error_type", "correct_letter"),
)
MMLU_REDUX_ORIGINAL = dataclasses.replace(
    MMLU_REDUX, name="mmlu_redux_original", file="mmlu_redux", finish=lambda example: example,
    needs=(),
)  # fmt: skip
