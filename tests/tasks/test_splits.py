import subprocess
import sys

import pytest

from gradejax.tasks.base import Example
from gradejax.tasks.splits import (
    check_disjoint,
    check_disjoint_seeds,
    few_shot,
    item_key,
    split_by_hash,
)


def item(id, question, choices=None):
    return Example(id, question, choices, "A")


TRAIN = [item("t0", "What is 2+2?"), item("t1", "Tom has 3 hens. How many legs?")]
MANY = [item(f"m{i}", f"What is {i}+{i}?") for i in range(1000)]


def test_overlap_f07():
    keys = [item_key(e) for e in [*TRAIN, item("e0", "what is 2 + 2 ?")]]
    assert keys == ["what is 2+2", "tom has 3 hens.how many legs", "what is 2+2"]
    with pytest.raises(ValueError, match=r"1 shared item\(s\): train:t0 = test:e0"):
        check_disjoint({"train": TRAIN, "test": [item("e0", "what is 2 + 2 ?")]})
    check_disjoint({"train": TRAIN, "test": [item("e0", "What is 2-2?")]})
    with pytest.raises(ValueError, match="123 in both 'train' and 'val'"):
        check_disjoint_seeds({"train": range(0, 100_000), "val": [123]})
    check_disjoint_seeds({"train": range(0, 10**12), "val": range(10**12, 10**12 + 9)})


def test_options_belong_to_an_item_and_their_order_does_not():
    a, b = item("a", "Which?", ("x", "y")), item("b", "Which?", ("x", "z"))
    check_disjoint({"train": [a], "test": [b]})
    with pytest.raises(ValueError, match="train:a = test:c"):
        check_disjoint({"train": [a], "test": [item("c", "which ?", ("Y.", "x"))]})
    assert item_key(item("d", "?", ("a b", "c"))) != item_key(item("e", "?", ("a", "b c")))


def test_every_pair_of_splits_is_checked_and_long_lists_are_cut():
    with pytest.raises(ValueError, match="b:t0 = c:t0"):
        check_disjoint({"a": [item("z", "other")], "b": TRAIN, "c": TRAIN})
    with pytest.raises(ValueError, match=r"1000 shared.*and 995 more"):
        check_disjoint({"a": MANY, "b": MANY})


def test_few_shot_f07():
    pool = MANY[:10]
    chosen = few_shot(pool, pool[4], 3, seed=7)
    assert len({e.id for e in chosen}) == 3 and "m4" not in {e.id for e in chosen}
    assert chosen == few_shot(pool, pool[4], 3, seed=7)
    picks = {tuple(e.id for e in few_shot(pool, pool[4], 3, seed=s)) for s in range(20)}
    assert len(picks) > 10
    copy = item("copy", "what is 4 + 4")
    assert "m4" not in {e.id for e in few_shot(pool, copy, 9, seed=0)}
    with pytest.raises(ValueError, match="at least 10 other items in the pool, got 9"):
        few_shot(pool, pool[4], 10, seed=0)


def test_split_by_fraction_is_stable_when_items_are_added():
    chosen, rest = split_by_hash(MANY[:500], fraction=0.3, salt="v1")
    assert sorted(chosen + rest, key=lambda e: int(e.id[1:])) == MANY[:500]
    assert 115 <= len(chosen) <= 185  # 150 expected, sd 10
    more, _ = split_by_hash(MANY, fraction=0.3, salt="v1")
    assert set(chosen) <= set(more) and not set(rest) & set(more)
    assert set(split_by_hash(MANY[:500], fraction=0.3, salt="v2")[0]) != set(chosen)
    assert split_by_hash(MANY, fraction=0.0)[0] == () == split_by_hash(MANY, fraction=1.0)[1]


def test_split_by_count_is_exact_and_keeps_copies_together():
    chosen, rest = split_by_hash(MANY, count=48)
    assert len(chosen) == 48 and len(rest) == 952
    check_disjoint({"chosen": chosen, "rest": rest})
    copies = [item("c0", "what is 1 + 1"), *MANY[:4]]  # c0 is a copy of m1
    for count in range(6):
        try:
            parts = split_by_hash(copies, count=count)
        except ValueError as error:
            assert "without parting copies" in str(error)
        else:
            check_disjoint({"chosen": parts[0], "rest": parts[1]})
            assert len(parts[0]) == count
    with pytest.raises(ValueError, match="parting copies"):
        split_by_hash([copies[0], copies[2]], count=1)


@pytest.mark.parametrize(
    "wrong", [{}, {"fraction": 0.5, "count": 1}, {"fraction": 1.5}, {"count": 9}]
)
def test_split_arguments(wrong):
    with pytest.raises(ValueError, match="expected"):
        split_by_hash(TRAIN, **wrong)


def test_split_is_the_same_in_another_process():
    code = (
        "from gradejax.tasks.base import Example; from gradejax.tasks.splits import split_by_hash; "
        "print([e.id for e in split_by_hash([Example(f'm{i}', f'What is {i}+{i}?', None, 'A') "
        "for i in range(30)], count=5)[0]])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str([e.id for e in split_by_hash(MANY[:30], count=5)[0]])
