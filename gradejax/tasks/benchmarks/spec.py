"""What a benchmark is: where it lies on the hub, what its rows mean, how it is asked and graded."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gradejax.tasks.base import Example
from gradejax.tasks.choices import LETTERS

# The keys that a row of the common format has, whatever its benchmark.
COMMON = ("id", "question", "choices", "answer")


class RowError(ValueError):
    """A row is not what its benchmark's columns promise; says what was expected and what was got.

    Never quotes the row: some benchmarks ask that their items appear in no log.
    """


class LeftOut(Exception):
    """A row that the benchmark itself leaves out; the text is the reason it is counted under."""


@dataclass(frozen=True)
class Place:
    """Where a row stood: its subset (a configuration on the hub), split and number there."""

    subset: str
    split: str
    index: int


def _no_working(example: Example) -> str:
    del example
    return ""


def _as_it_is(example: Example) -> Example:
    return example


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark, as data and three functions of a row.

    Attributes:
      name: in configs and as the family of its examples.
      hub_id: repository on the hub.
      revision: the commit that is loaded, so that a later upload changes no figure.
      kind: how answers are read and compared: one of `answers.KINDS`, or "code".
      slot: its `{format}` text, a key of `prompts.FORMATS`.
      splits: our split -> the hub's. A hub's "train" that is the published test set is "test" here.
      subsets: configurations on the hub, the first is the default.
      counts: (subset, split) -> published number of rows, of the hub's splits.
      from_hub: (row in the hub's columns, place) -> row of the common format with extras, whose
        names are those of the JSONL files. Raises RowError, or LeftOut.
      finish: what is done to an example of either source, e.g. another gold. Raises LeftOut.
      exemplars: the split that worked examples come from; None where only a test set exists.
      exemplar_key: worked examples share this entry of `meta` with the question ("subject").
      working: example -> the worked solution that its file has, without the final answer.
      file: stem of its JSONL files, `<file>.<split>.jsonl` or `<file>_<subset>.<split>.jsonl`.
      needs: extras without which an item cannot be graded.
      may_be_shown: False where the authors ask that items appear in no log.
    """

    name: str
    hub_id: str
    revision: str
    kind: str
    slot: str
    splits: Mapping[str, str]
    counts: Mapping[tuple[str, str], int]
    from_hub: Callable[[Mapping[str, Any], Place], dict[str, Any]]
    subsets: tuple[str, ...] = ("default",)
    finish: Callable[[Example], Example] = _as_it_is
    exemplars: str | None = None
    exemplar_key: str | None = None
    working: Callable[[Example], str] = _no_working
    file: str = ""
    needs: tuple[str, ...] = ()
    may_be_shown: bool = True

    def __post_init__(self):
        for field in ("splits", "counts"):
            object.__setattr__(self, field, MappingProxyType(dict(getattr(self, field))))
        object.__setattr__(self, "file", self.file or self.name)

    def check_subset(self, subset: str) -> str:
        """`subset`, or the default for ""; ValueError with the choices for an unknown one."""
        subset = subset or self.subsets[0]
        if subset not in self.subsets:
            shown = ", ".join(self.subsets)
            raise ValueError(f"{self.name} has no subset {subset!r}; choose from {shown}")
        return subset


def column(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...] = str) -> Any:
    """The value of a column; RowError when it is absent or of another type."""
    if name not in row:
        raise RowError(f"expected the column {name!r}, got {sorted(row)}")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RowError(f"expected {name!r} to be {_name(kind)}, got {type(value).__name__}")
    return value


def texts(row: Mapping[str, Any], name: str) -> list[str]:
    """A column that holds a list of texts."""
    value = list(column(row, name, (list, tuple)))
    if not all(isinstance(item, str) for item in value):
        raise RowError(f"expected {name!r} to be a list of texts")
    return value


def letter_of(index: int, choices: Sequence[str]) -> str:
    """The letter of a 0-based index; RowError outside the options."""
    if not 0 <= index < len(choices):
        raise RowError(f"expected an index into {len(choices)} options, got {index}")
    return LETTERS[index]


def with_meta(example: Example, **entries: Any) -> Example:
    """The example with more entries in its meta."""
    return dataclasses.replace(example, meta={**example.meta, **entries})


def _name(kind: type | tuple[type, ...]) -> str:
    return " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
