"""MATH and MATH-500: competition mathematics (Hendrycks et al. 2021, arXiv 2103.03874).

MATH-500 is the 500 test problems of Lightman et al. (2023, arXiv 2305.20050). It has no training
set of its own; MATH's training set is disjoint from it.
"""

from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, RowError, column
from gradejax.tasks.reading import boxes

# subject: (train, test)
SUBJECTS = {
    "algebra": (1744, 1187), "counting_and_probability": (771, 474), "geometry": (870, 479),
    "intermediate_algebra": (1295, 903), "number_theory": (869, 540), "prealgebra": (1205, 871),
    "precalculus": (746, 546),
}  # fmt: skip


def gold_of(solution: str) -> str:
    r"""The content of the solution's last \boxed{}; some solutions box steps as well."""
    found = boxes(solution)
    if not found:
        raise RowError(r"expected a solution with a \boxed{} answer")
    return found[-1].text.strip()


def from_hub(row, place: Place) -> dict:
    """`level` is text ("Level 5"; a few are "Level ?")."""
    solution = column(row, "solution")
    level = column(row, "level").removeprefix("Level ").strip()
    return {
        "id": f"math-{place.subset}-{place.split}-{place.index}",
        "question": column(row, "problem"),
        "choices": None,
        "answer": gold_of(solution),
        "subject": column(row, "type"),
        "level": int(level) if level.isdigit() else None,
        "solution": solution,
    }


def from_hub_500(row, place: Place) -> dict:
    del place
    return {
        "id": column(row, "unique_id"),
        "question": column(row, "problem"),
        "choices": None,
        "answer": column(row, "answer"),
        "subject": column(row, "subject"),
        "level": column(row, "level", int),
        "solution": column(row, "solution"),
    }


def working(example: Example) -> str:
    """The published solution, boxes and all."""
    return example.meta.get("solution", "").strip()


MATH = BenchmarkSpec(
    name="math",
    hub_id="EleutherAI/hendrycks_math",
    revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
    kind="math",
    slot="open",
    subsets=("all", *SUBJECTS),
    splits={"train": "train", "test": "test"},
    counts={
        (subject, split): n
        for subject, both in {**SUBJECTS, "all": (7500, 5000)}.items()
        for split, n in zip(("train", "test"), both, strict=True)
    },
    from_hub=from_hub,
    exemplars="train",
    working=working,
)
MATH500 = BenchmarkSpec(
    name="math500",
    hub_id="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    kind="math",
    slot="open",
    splits={"test": "test"},
    counts={("default", "test"): 500},
    from_hub=from_hub_500,
    working=working,
)
