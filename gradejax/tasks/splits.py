"""Keeps training and test items apart: stable splits, overlap checks, worked examples.

Items are told apart by their *normalised* text, because copies of one question differ in blanks,
capitals and the order of options.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from gradejax.tasks.base import Example
from gradejax.tasks.reading import normalise

_SHOWN = 5  # pairs named in one error


def item_key(example: Example) -> str:
    """The normalised question and options of an example.

    Options belong to the key (items with one stem and other options are other items), their order
    does not (a reshuffled item is the same item).
    """
    options = sorted(normalise(choice) for choice in example.choices or ())
    return "\n".join([normalise(example.question), *options])


def check_disjoint(splits: Mapping[str, Sequence[Example]]) -> None:
    """Raises ValueError, naming the pairs of ids, when two splits share an item.

    Only ids are printed: some benchmarks ask that their items appear in no log.
    """
    by_key = {
        name: {item_key(example): example.id for example in examples}
        for name, examples in splits.items()
    }
    pairs = [
        f"{a}:{by_key[a][key]} = {b}:{by_key[b][key]}"
        for a, b in combinations(by_key, 2)
        for key in by_key[a]
        if key in by_key[b]
    ]
    if pairs:
        more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        raise ValueError(
            f"expected disjoint splits, got {len(pairs)} shared item(s): "
            f"{', '.join(pairs[:_SHOWN])}{more}"
        )


def check_disjoint_seeds(splits: Mapping[str, Collection[int]]) -> None:
    """Raises ValueError when two splits of generated items share a seed. Ranges are not expanded
    unless both are long; membership in a `range` is free."""
    for (a, seeds_a), (b, seeds_b) in combinations(splits.items(), 2):
        few, many = sorted((seeds_a, seeds_b), key=len)
        shared = next((seed for seed in few if seed in many), None)
        if shared is not None:
            raise ValueError(f"expected disjoint seeds, got {shared} in both {a!r} and {b!r}")


def split_by_hash(
    examples: Sequence[Example],
    *,
    fraction: float | None = None,
    count: int | None = None,
    salt: str = "",
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Splits examples into (chosen, rest) by a stable hash of their normalised text.

    With `fraction` in [0, 1] each item decides for itself, so adding items to a file never moves
    another item across; the share is met on average. With `count` exactly that many are chosen.
    Copies of one item always stay on one side. Both parts keep the order of `examples`. Another
    `salt` gives another split. Raises ValueError unless exactly one of the two is given, in range.
    """
    if (fraction is None) == (count is None):
        raise ValueError(f"expected fraction or count, got fraction={fraction}, count={count}")
    hashes = [_hash(salt, item_key(example)) for example in examples]
    if fraction is not None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"expected fraction in [0, 1], got {fraction}")
        chosen = {h for h in hashes if h < fraction * 2**64}
    else:
        if not 0 <= count <= len(examples):
            raise ValueError(f"expected count in 0..{len(examples)}, got {count}")
        chosen, left = set(), count
        for h in sorted(set(hashes)):
            copies = hashes.count(h) if left else 0
            if 0 < copies <= left:
                chosen.add(h)
                left -= copies
        if left:
            raise ValueError(f"cannot choose exactly {count} items without parting copies")
    paired = list(zip(hashes, examples, strict=True))
    return (
        tuple(example for h, example in paired if h in chosen),
        tuple(example for h, example in paired if h not in chosen),
    )


def split_by_id(
    examples: Sequence[Example], *, fraction: float, salt: str = ""
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Splits examples into (chosen, rest) by a stable hash of their ids, disjoint also by text.

    Each item decides for itself, so another file of the same items is cut the same way; copies of
    one item go where the first of their ids goes. Both parts keep the order of `examples`. Raises
    ValueError for a fraction outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected fraction in [0, 1], got {fraction}")
    first: dict[str, str] = {}
    keys = [item_key(example) for example in examples]
    for key, example in zip(keys, examples, strict=True):
        first[key] = min(first.get(key, example.id), example.id)
    chosen = {key for key, item_id in first.items() if _hash(salt, item_id) < fraction * 2**64}
    paired = list(zip(keys, examples, strict=True))
    return (
        tuple(example for key, example in paired if key in chosen),
        tuple(example for key, example in paired if key not in chosen),
    )


def without_copies(
    examples: Sequence[Example], of: Sequence[Example] = ()
) -> tuple[tuple[Example, ...], tuple[str, ...]]:
    """(examples without copies of earlier ones and of the items `of`; the ids left out)."""
    seen = {item_key(example) for example in of}
    kept, dropped = [], []
    for example in examples:
        key = item_key(example)
        (dropped.append(example.id) if key in seen else kept.append(example))
        seen.add(key)
    return tuple(kept), tuple(dropped)


def few_shot(pool: Sequence[Example], example: Example, k: int, seed: int) -> tuple[Example, ...]:
    """k distinct worked examples of `pool` for `example`: never the item itself or a copy of it.

    Equal seeds give equal examples on every machine. Raises ValueError when the pool has fewer.
    """
    own = item_key(example)
    others = {item_key(other): other for other in pool}
    others.pop(own, None)
    if len(others) < k:
        raise ValueError(f"expected at least {k} other items in the pool, got {len(others)}")
    ranked = sorted(others, key=lambda key: _hash(str(seed), own + "\n\n" + key))
    return tuple(others[key] for key in ranked[:k])


def within_length(lengths: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
    """Indices of prompts of at most `limit` tokens, and of those to drop: a prompt is never cut."""
    kept = [i for i, length in enumerate(lengths) if length <= limit]
    dropped = [i for i, length in enumerate(lengths) if length > limit]
    return kept, dropped


def _hash(salt: str, key: str) -> int:
    """64 bits; the built-in hash differs from process to process."""
    return int.from_bytes(hashlib.sha256(f"{salt}\0{key}".encode()).digest()[:8], "big")
