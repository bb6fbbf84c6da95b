"""Shuffled options: the gold moves along, the mapping is kept, bound options stay (fault F09)."""

import pytest

from gradejax.tasks.base import Example
from gradejax.tasks.choices import LETTERS
from gradejax.tasks.shuffle import fixed_places, order_of, shuffle_choices


def item(choices, gold="B", item_id="q1"):
    return Example(item_id, "?", tuple(choices), gold, "f")


def gold_text(example):
    return example.choices[LETTERS.index(example.answer)]


@pytest.mark.parametrize("n", [2, 3, 4, 9, 10])
def test_the_gold_moves_along_and_the_mapping_leads_back(n):
    first = item([f"option {i}" for i in range(n)])
    places = []
    for seed in range(60):
        mixed = shuffle_choices(first, seed)
        assert gold_text(mixed) == "option 1"
        assert [first.choices[i] for i in mixed.meta["order"]] == list(mixed.choices)
        places.append(mixed.answer)
    # the fault: options move and the gold's letter does not
    assert set(places) == set(LETTERS[:n])
    assert shuffle_choices(first, 3) == shuffle_choices(first, 3)


def test_every_place_is_equally_likely():
    golds = [shuffle_choices(item("wxyz", item_id=f"q{i}"), 0).answer for i in range(2000)]
    for letter in "ABCD":
        assert 420 < golds.count(letter) < 580  # 500 ± 4 deviations of 19.4


def test_shuffling_twice_keeps_a_mapping_to_the_first_order():
    first = item("wxyz")
    twice = shuffle_choices(shuffle_choices(first, 1), 2)
    assert [first.choices[i] for i in twice.meta["order"]] == list(twice.choices)
    assert gold_text(twice) == "x"


@pytest.mark.parametrize(
    "choices, fixed",
    [
        (["1", "2", "3", "4"], set()),
        (["red", "blue", "green", "all of the above"], {3}),
        (["red", "blue", "All of these", "None of the above"], {2, 3}),
        (["red", "None of the above.", "blue", "green"], None),
        (["red", "blue", "Both A and B", "Neither A nor B"], None),
        (["red", "blue", "green", "A and C only"], None),
        (["I only", "II only", "I and II", "neither I nor II"], set()),
        (["a cat", "the cat above", "a dog", "a cow"], None),
        (["vitamin A and iron", "vitamin B", "vitamin C", "vitamin D"], set()),
        (["A and B are parallel", "x", "y", "z"], None),
        (["x", "y", "z", "Neither"], {3}),
    ],
)
def test_options_that_speak_of_places_keep_theirs(choices, fixed):
    assert fixed_places(choices) == (None if fixed is None else frozenset(fixed))
    for seed in range(30):
        mixed = shuffle_choices(item(choices), seed)
        assert gold_text(mixed) == choices[1]
        if fixed is None:
            assert list(mixed.choices) == choices
            assert mixed.meta["order"] == list(range(len(choices)))
        else:
            assert all(mixed.choices[i] == choices[i] for i in fixed)


def test_open_questions_are_left_alone():
    example = Example("q", "?", None, "4")
    assert shuffle_choices(example, 1) is example


def test_orders_do_not_depend_on_the_process():
    # sha256 of "7\0abc\0i": the same on every machine, unlike the built-in hash
    assert order_of("abc", 4, 7) == order_of("abc", 4, 7)
    assert sorted(order_of("abc", 10, 7)) == list(range(10))
    assert len({order_of("abc", 5, seed) for seed in range(100)}) > 50


def test_real_options(shared):
    from gradejax.tasks.benchmarks import load

    examples = load("mmlu_pro", folder=f"{shared}/data").examples[:3000]
    mixed = [shuffle_choices(e, 0) for e in examples]
    assert all(gold_text(a) == gold_text(b) for a, b in zip(examples, mixed, strict=True))
    moved = sum(a.choices != b.choices for a, b in zip(examples, mixed, strict=True))
    assert moved > 2800
