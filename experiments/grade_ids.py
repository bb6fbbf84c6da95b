"""Which lines of an outputs file have an item in the folder of benchmarks, and whose gold decides.

A wrong folder, a wrong split or ids of another numbering would give plausible wrong figures: so
every line is matched before any is graded, and what does not match is counted and said.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.grade_items import Items, gold_letter, kind_of
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example
from gradejax.tasks.prompts import open_format

# What became of a line's id.
NO_FOLDER, NO_ID = "no_folder", "no_id"
FOUND, NOT_FOUND, CONTRADICTING = "found", "not_found", "contradicting"
_SHOWN = 5  # ids named in one sentence


class Matched(NamedTuple):
    """A line with its item.

    Attributes:
      row: the line; its gold and options are those that it is graded by.
      item: the item's row, None without one.
      kind: of answer; see `grade_items.kind_of`.
      state: NO_FOLDER, NO_ID, FOUND, NOT_FOUND or CONTRADICTING (found, but the line's gold is
        another one than the item's).
    """

    row: Mapping[str, Any]
    item: Mapping[str, Any] | None
    kind: str
    state: str

    @property
    def said(self) -> bool:
        """Must a reader of the verdict know?"""
        return self.state in (NOT_FOUND, CONTRADICTING)


def look_up(rows: Iterable[Mapping[str, Any]], items: Items) -> list[Matched]:
    """Each line with its item, in order."""
    out = []
    for row in rows:
        item = None if row["asked"] is None else items.find(row["benchmark"], row["asked"])
        kind = kind_of(row, item)
        if item is not None:
            row, state = _settled(row, item, kind)
        elif items.folder is None:
            state = NO_FOLDER
        else:
            state = NO_ID if row["asked"] is None else NOT_FOUND
        out.append(Matched(row, item, kind, state))
    return out


def check_found(matched: Sequence[Matched], items: Items) -> None:
    """Refuse a benchmark whose file is there and holds none of the ids asked.

    Raises:
      ValueError: names the file, ids asked and ids that it holds.
    """
    for benchmark, rows in _by_benchmark(matched).items():
        asked = [m for m in rows if m.state != NO_ID]
        absent = [m for m in asked if m.state == NOT_FOUND]
        if absent and len(absent) == len(asked) and items.holds_all(benchmark):
            held, files = items.ids(benchmark), _files(items, benchmark)
            raise ValueError(
                f"{benchmark}: none of the {len(asked)} ids asked is in {files}; asked are "
                f"ids such as {_few([repr(m.row['id']) for m in asked], 2)}, it holds ids such as "
                f"{_few([repr(i) for i in held], 2) if held else 'none at all'}. Name the folder "
                "that the ids are from, or leave out --data to grade by 'gold' alone"
            )


def warnings_of(matched: Sequence[Matched], items: Items) -> Iterator[str]:
    """What a reader of the figures must know of the ids, a sentence each."""
    for benchmark, rows in _by_benchmark(matched).items():
        absent = [str(m.row["id"]) for m in rows if m.state == NOT_FOUND]
        if absent:
            where = _files(items, benchmark) or f"{items.folder}, which has no file of it"
            yield (
                f"{benchmark}: {len(absent)} of {len(rows)} ids are not in {where}; these lines "
                f"are graded by what they hold themselves: {_few(absent, _SHOWN)}"
            )
        nameless = sum(m.state == NO_ID for m in rows)
        if nameless:
            yield f"{benchmark}: {nameless} of {len(rows)} lines have no id to find an item by"
        odd = [str(m.row["id"]) for m in rows if m.state == CONTRADICTING]
        if odd:
            yield (
                f"{benchmark}: the gold of {len(odd)} of {len(rows)} lines contradicts the item's "
                f"own in {_files(items, benchmark)}; the item's decides: {_few(odd, _SHOWN)}"
            )


def counted_ids(matched: Iterable[Matched]) -> dict[str, int]:
    """{"found", "not_found", "contradicting"}: those that contradict are found as well."""
    states = Counter(m.state for m in matched)
    out = {
        "found": states[FOUND] + states[CONTRADICTING],
        "not_found": states[NOT_FOUND],
        "contradicting": states[CONTRADICTING],
    }
    return out | ({"no_id": states[NO_ID]} if states[NO_ID] else {})


def _settled(row: Mapping[str, Any], item: Mapping[str, Any], kind: str):
    """(the line with the gold that decides, FOUND or CONTRADICTING)."""
    own = _own_golds(row, item)
    if kind == "code" or not own:  # a program is graded by the item's tests alone
        return row, FOUND
    if kind == "choice":
        return _settled_choice(row, item, own)
    if row.get("gold") is None:
        return row | {"gold": own[0]}, FOUND
    if any(_same(row["gold"], gold, kind, row) for gold in own):
        return row, FOUND
    return row | {"gold": own[0]}, CONTRADICTING


def _settled_choice(row, item, own):
    """As `_settled`; a line may show the item's options in another order."""
    listed = tuple(map(str, item.get("choices") or ()))
    shown = tuple(map(str, row.get("choices") or listed))
    if not listed:
        return (row if row.get("gold") is not None else row | {"gold": own[0]}), FOUND
    labels = tuple(map(str, item.get("labels") or item.get("orig_labels") or ()))
    where = f"item {item.get('id')!r} of {row['benchmark']!r}"
    texts = [listed[ord(gold_letter(g, listed, labels, where)) - ord("A")] for g in own]
    if sorted(shown) != sorted(listed):
        return row | {"choices": listed, "gold": texts[0]}, CONTRADICTING
    # the letter by place where the order is the item's own: a text may stand there twice
    places = own if shown == listed else texts
    letters = [gold_letter(g, shown, labels, where) for g in places]
    if row.get("gold") is None:
        return row | {"gold": letters[0]}, FOUND
    try:
        given = gold_letter(row["gold"], shown, labels, row["where"])
    except ValueError:
        given = None  # no option of this item
    if given in letters:
        return row, FOUND
    return row | {"gold": letters[0]}, CONTRADICTING


def _own_golds(row: Mapping[str, Any], item: Mapping[str, Any]) -> list[Any]:
    """The item's golds, the one that decides first.

    MMLU-Redux has two labels where its annotators corrected MMLU's, and neither contradicts the
    item; the corrected one decides, as in a run on that benchmark.
    """
    golds = [item["answer"]] if item.get("answer") not in (None, "") else []
    corrected = item.get("correct_letter")
    if corrected and item.get("error_type") == "wrong_groundtruth":
        original = row["benchmark"].lower().replace("-", "_").endswith("original")
        golds = [*golds, corrected] if original else [corrected, *golds]
    return golds


def _same(gold: Any, own: Any, kind: str, row: Mapping[str, Any]) -> bool:
    gold, own = (str(g).rsplit("####", 1)[-1].strip() for g in (gold, own))
    if gold == own:
        return True
    example = Example(str(row["id"]), "", None, own, family=row["benchmark"])
    return make_task(kind, kind, open_format).grade(gold, example)


def _by_benchmark(matched: Sequence[Matched]) -> dict[str, list[Matched]]:
    out: dict[str, list[Matched]] = {}
    for match in matched:
        if match.state != NO_FOLDER:
            out.setdefault(match.row["benchmark"], []).append(match)
    return out


def _files(items: Items, benchmark: str) -> str:
    return _few([str(path) for path in items.files(benchmark)], 2)


def _few(names: Sequence[str], n: int) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
