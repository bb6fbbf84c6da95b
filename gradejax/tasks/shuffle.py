"""Shuffles the options of multiple-choice questions, to measure or to remove position bias.

The order is a function of (seed, id) alone, the same on every machine. The gold moves along, and
the record keeps the mapping. Options that speak of the others' places keep their own (fault F09).
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence

from gradejax.tasks.base import Example
from gradejax.tasks.choices import LETTERS

# meta key of the mapping: order[i] is the original place of the option shown at place i
ORDER = "order"

# "All of the above", "None of these": right only after all the others
_CLOSING = re.compile(
    r"\b(?:all|any|both|either|neither|none|each|some|two|three)\b.{0,20}"
    r"\b(?:above|these|those|others?|options|choices|answers|statements given)\b"
    r"|^\W*(?:none|all|neither|both)\W*$",
    re.IGNORECASE,
)
# "Both A and B", "(A) or (C) only", "A, B and C": bound to letters (I is a numeral)
_LETTERS_NAMED = re.compile(
    r"(?:\b(?:both|either|neither|options?|choices?|answers?|only|not)\b\s+\(?[A-HJ]\)?(?![\w'’+-])"
    r"|\(?\b[A-HJ]\)?\s*(?:,|and|or|&)\s*\(?[A-HJ]\)?(?![\w'’+-]))"
)
_ABOVE = re.compile(r"\b(?:above|below|preceding|previous|following)\b", re.IGNORECASE)


def order_of(item_id: str, n: int, seed: int) -> tuple[int, ...]:
    """A permutation of range(n) that depends on the seed and the id: each is equally likely."""

    def rank(i: int) -> bytes:
        return hashlib.sha256(f"{seed}\0{item_id}\0{i}".encode()).digest()

    return tuple(sorted(range(n), key=rank))


def fixed_places(choices: Sequence[str]) -> frozenset[int] | None:
    """Places of options that must stay; None when the item cannot be shuffled at all.

    A closing option ("none of the above") stays where it is if it is last; in the midst of others,
    or where an option names letters ("both A and B"), every place means something.
    """
    if any(_LETTERS_NAMED.search(choice) for choice in choices):
        return None
    closing = [i for i, choice in enumerate(choices) if _CLOSING.search(choice)]
    elsewhere = [i for i, c in enumerate(choices) if _ABOVE.search(c) and i not in closing]
    tail = list(range(len(choices) - len(closing), len(choices)))
    if elsewhere or closing != tail:
        return None
    return frozenset(closing)


def shuffle_choices(example: Example, seed: int) -> Example:
    """The example with its options in another order, its gold moved along.

    Its meta gains `order`; an example that was shuffled before keeps a mapping to its first order.
    Open questions, and items whose options are bound to their places, keep their order. Worked
    examples are to be shown as they are: their solutions name letters.
    """
    if example.choices is None:
        return example
    n = len(example.choices)
    before = tuple(example.meta.get(ORDER, range(n)))
    fixed = fixed_places(example.choices)
    if fixed is None:
        return _reordered(example, tuple(range(n)), before)
    free = [i for i in range(n) if i not in fixed]
    moved = iter(free[i] for i in order_of(example.id, len(free), seed))
    return _reordered(example, tuple(i if i in fixed else next(moved) for i in range(n)), before)


def _reordered(example: Example, order: tuple[int, ...], before: tuple[int, ...]) -> Example:
    gold = LETTERS.index(example.answer)
    return dataclasses.replace(
        example,
        choices=tuple(example.choices[i] for i in order),
        answer=LETTERS[order.index(gold)],
        meta={**example.meta, ORDER: [before[i] for i in order]},
    )
