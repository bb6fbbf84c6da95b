"""AIME 2025: both exams, 30 problems with integer answers 0..999 (MathArena's transcription)."""

from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column

_PER_EXAM = 15


def from_hub(row, place: Place) -> dict:
    """Problems 1-15 are exam I, 16-30 exam II."""
    del place
    number = column(row, "problem_idx", int)
    if not 1 <= number <= 2 * _PER_EXAM:
        raise RowError(f"expected problem_idx in 1..{2 * _PER_EXAM}, got {number}")
    exam = "I" if number <= _PER_EXAM else "II"
    number = (number - 1) % _PER_EXAM + 1
    return {
        "id": f"aime2025-{exam}-{number}",
        "question": column(row, "problem"),
        "choices": None,
        "answer": str(column(row, "answer", (int, str))),
        "exam": f"AIME 2025 {exam}",
        "number": number,
    }


AIME2025 = BenchmarkSpec(
    name="aime2025",
    hub_id="MathArena/aime_2025",
    revision="c94da77eb22bbd6439e62a323bec18493a421302",
    kind="integer",
    slot="aime",
    splits={"test": "train"},  # the hub calls its only split "train"
    counts={("default", "test"): 30},
    from_hub=from_hub,
)
