"""What guessing earns on multiple choice, and how far above it an accuracy lies (fault F09)."""

from collections.abc import Sequence

from gradejax.tasks.base import Example


def chance_level(examples: Sequence[Example]) -> float:
    """Expected accuracy of uniform guessing: the mean of 1/n over the items' own numbers of
    options; open answers count 0. Raises ValueError for no examples."""
    if not examples:
        raise ValueError("expected at least one example, got none")
    return sum(1 / len(e.choices) if e.choices else 0.0 for e in examples) / len(examples)


def above_chance(accuracy: float, chance: float) -> float:
    """(accuracy − chance) / (1 − chance): 0 for guessing, 1 for all right. Raises ValueError unless
    0 <= chance < 1."""
    if not 0 <= chance < 1:
        raise ValueError(f"expected a chance level in [0, 1), got {chance}")
    return (accuracy - chance) / (1 - chance)
