"""HumanEval: complete a function, graded by its tests (Chen et al. 2021, arXiv 2107.03374)."""

from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, column


def from_hub(row, place: Place) -> dict:
    """The question is the prompt as it is: code up to the docstring; the gold a body for it."""
    del place
    return {
        "id": column(row, "task_id"),
        "question": column(row, "prompt"),
        "choices": None,
        "answer": column(row, "canonical_solution"),
        "entry_point": column(row, "entry_point"),
        "test": column(row, "test"),
    }


HUMANEVAL = BenchmarkSpec(
    name="humaneval",
    hub_id="openai/openai_humaneval",
    revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    kind="code",
    slot="code",
    subsets=("openai_humaneval",),
    splits={"test": "test"},
    counts={("openai_humaneval", "test"): 164},
    from_hub=from_hub,
    needs=("entry_point", "test"),
)
