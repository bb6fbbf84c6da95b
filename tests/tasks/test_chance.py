"""Chance is the mean of 1/n over the items' own options (fault F09)."""

import pytest

from gradejax.tasks.base import Example
from gradejax.tasks.chance import above_chance, chance_level


def item(n):
    return Example("q", "?", tuple(f"{i}" for i in range(n)) if n else None, "A")


def test_the_mean_of_one_over_n():
    # (1/2 + 1/4 + 1/10 + 0) / 4
    assert chance_level([item(2), item(4), item(10), item(0)]) == pytest.approx(0.2125)
    with pytest.raises(ValueError, match="at least one example"):
        chance_level([])


def test_the_normalised_score():
    assert above_chance(0.25, 0.25) == 0 and above_chance(1.0, 0.1) == 1
    assert above_chance(0.4, 0.25) == pytest.approx(0.2)  # .15 / .75
    assert above_chance(0.0, 0.5) == -1
    with pytest.raises(ValueError, match=r"chance level in \[0, 1\), got 1"):
        above_chance(0.5, 1)


def test_mmlu_pro_is_not_a_tenth(shared):
    from gradejax.tasks.benchmarks import load

    examples = load("mmlu_pro", folder=f"{shared}/data").examples
    # 20/3 + 607/4 + 52/5 + 92/6 + 159/7 + 320/8 + 801/9 + 9981/10, over 12032
    assert chance_level(examples) == pytest.approx(0.110868, abs=1e-6)
    assert {len(e.choices) for e in examples} == set(range(3, 11))
