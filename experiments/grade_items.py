"""What `experiments.grade` must know of a question: its kind of answer, its options, its gold.

The name in `benchmark` decides both: the kind of answer (KINDS, by the longest prefix that fits; an
unknown name by what the item or the gold shows) and the files of the folder that are read for it
(`Items`).
"""

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from experiments.grade_rows import read_item
from gradejax.tasks import benchmarks
from gradejax.tasks.base import Example
from gradejax.tasks.choices import LETTERS
from gradejax.tasks.numbers import canonical_integer, is_plain_number, parse

# benchmark names, without case and marks, by prefix; the longest that fits decides
KINDS = {
    "aime": "integer", "arc": "choice", "bbhnavigate": "choice", "gpqa": "choice",
    "gsm": "number", "humaneval": "code", "math": "math", "mmlu": "choice", "navigate": "choice",
}  # fmt: skip
# How many options an item has that is not found in the data; its letters alone can be read then.
OPTIONS = {"mmlupro": 10, "arc": 5}
# A benchmark whose items are also another's: its file serves the other, as far as it goes.
PART_OF = {"math500": "math"}


class Items:
    """The items of a folder of benchmark files, read when a benchmark is first asked for.

    Read for a benchmark are the files whose name begins with its own (`mmlu_astronomy.test.jsonl`
    for "mmlu"), or the other way ("gsm8k_main" reads `gsm8k.test.jsonl`), without case and marks;
    never the file of another published benchmark (mmlu_pro's for "mmlu": the ids may be the same).

    Raises:
      ValueError: no such folder; a broken line, with its file and number.
    """

    def __init__(self, folder: str | os.PathLike | None) -> None:
        self._folder = None if folder is None else pathlib.Path(folder)
        if self._folder is not None and not self._folder.is_dir():
            raise ValueError(f"expected a folder of benchmark files, got {str(folder)!r}")
        self._by_benchmark: dict[str, dict[str, dict]] = {}

    @property
    def folder(self) -> pathlib.Path | None:
        """None when no folder was given: then no item is ever found."""
        return self._folder

    def find(self, benchmark: str, item_id: Any) -> dict[str, Any] | None:
        """The item's row, or None when the folder has none of that id."""
        return self._of(benchmark).get(str(item_id))

    def ids(self, benchmark: str) -> list[str]:
        """The ids that the folder holds of a benchmark."""
        return list(self._of(benchmark))

    def files(self, benchmark: str) -> list[pathlib.Path]:
        """The files that are read for a benchmark, its own before its kin, test before the rest."""
        if self._folder is None:
            return []
        name = _bare(benchmark)
        spec = _spec_of(benchmark)

        def serves(path: pathlib.Path) -> bool:
            family = _family(path)
            if not (family.startswith(name) or name.startswith(family)):
                return False
            other = benchmarks.of_file(path.stem)
            if spec is None or other is None or other.file == spec.file:
                return True
            return PART_OF.get(other.name) == spec.name

        paths = [path for path in sorted(self._folder.glob("*.jsonl")) if serves(path)]
        return sorted(paths, key=lambda p: (_family(p) != name, ".test" not in p.name))

    def holds_all(self, benchmark: str) -> bool:
        """Are there files that should hold every item asked, rather than a part or none?"""
        name = _bare(benchmark)
        return any(PART_OF.get(_family(p)) != name for p in self.files(benchmark))

    def _of(self, benchmark: str) -> dict[str, dict]:
        name = _bare(benchmark)
        if name not in self._by_benchmark:
            found: dict[str, dict] = {}
            for path in self.files(benchmark):
                with open(path, encoding="utf-8-sig", newline="\n") as file:
                    for number, line in enumerate(file, start=1):
                        if line.strip():
                            row = read_item(line, f"{path}:{number}")
                            found.setdefault(str(row.get("id")), row)
            self._by_benchmark[name] = found
        return self._by_benchmark[name]


def kind_of(row: Mapping[str, Any], item: Mapping[str, Any] | None) -> str:
    """The kind of answer of a benchmark; for an unknown one, what the item or the gold shows."""
    name = _bare(row["benchmark"])
    known = [prefix for prefix in KINDS if name.startswith(prefix)]
    if known:
        return KINDS[max(known, key=len)]
    item = item or {}
    if item.get("test") and item.get("entry_point"):
        return "code"
    if row.get("choices") or item.get("choices"):
        return "choice"
    gold = str(_gold(row, item) or "")
    if is_plain_number(gold):
        return "number"
    return "math" if re.search(r"[\\^$]", gold) else "text"


def example_of(row: Mapping[str, Any], item: Mapping[str, Any] | None, kind: str) -> Example:
    """The question of a row as far as grading needs it.

    Raises:
      ValueError: there is no gold, or it fits no answer of this kind; names file and line.
    """
    item = item or {}
    gold, choices, meta = _gold(row, item), None, {}
    if gold is None or not str(gold).strip():
        raise ValueError(
            f"{row['where']}: expected 'gold', or an 'id' that is found in the folder of --data; "
            f"got id {row['id']!r} of {row['benchmark']!r}"
        )
    if kind == "choice":
        choices = tuple(map(str, row.get("choices") or item.get("choices") or ()))
        choices = choices or _unknown_options(_bare(row["benchmark"]))
        labels = tuple(map(str, item.get("labels") or item.get("orig_labels") or ()))
        if not labels and str(gold) in "12345" and _bare(row["benchmark"]).startswith("arc"):
            labels = tuple("12345"[: len(choices)])
        meta = {"labels": labels} if any(label.isdigit() for label in labels) else {}
        gold = gold_letter(gold, choices, labels, row["where"])
    elif kind == "number":
        gold = str(gold).rsplit("####", 1)[-1].strip()
        if parse(gold) is None:
            raise ValueError(f"{row['where']}: expected 'gold' to be a number, got {gold!r}")
    elif kind == "integer" and not canonical_integer(str(gold), None).isdigit():
        raise ValueError(f"{row['where']}: expected 'gold' to be in 0..999, got {gold!r}")
    return Example(
        str(row["id"]), "", choices, str(gold), family=row["benchmark"], source="", meta=meta
    )


def _gold(row: Mapping[str, Any], item: Mapping[str, Any]) -> Any:
    return item.get("answer") if row.get("gold") is None else row["gold"]


def gold_letter(gold: Any, choices: tuple, labels: tuple, where: str) -> str:
    """The gold as a letter by place: given as a letter, a label, a 0-based index or a text.

    Raises:
      ValueError: it is none of the options, or the text of several.
    """
    letters = LETTERS[: len(choices)]
    if isinstance(gold, int):
        gold = letters[gold] if 0 <= gold < len(letters) and str(gold) not in labels else str(gold)
    gold = str(gold).strip()
    if len(gold) == 1 and gold in letters:
        return gold
    if gold in labels:
        return LETTERS[labels.index(gold)]
    places = [i for i, choice in enumerate(choices) if choice.strip().lower() == gold.lower()]
    if len(places) != 1:
        raise ValueError(
            f"{where}: gold {gold!r} is no option; expected a letter of {letters} or the "
            "text of exactly one option"
        )
    return LETTERS[places[0]]


def _family(path: pathlib.Path) -> str:
    return _bare(path.name.split(".")[0])


def _spec_of(benchmark: str):
    """The published benchmark that a name speaks of, None for any other."""
    return benchmarks.of_file(re.sub(r"[^a-z0-9]+", "_", benchmark.lower()))


def _unknown_options(name: str) -> tuple[str, ...]:
    if "navigate" in name:
        return ("Yes", "No")
    known = [prefix for prefix in OPTIONS if name.startswith(prefix)]
    n = OPTIONS[max(known, key=len)] if known else 4
    return tuple(f"\0{i}" for i in range(n))  # texts that no reply repeats


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
