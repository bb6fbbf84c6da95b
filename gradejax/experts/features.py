"""The feature store: what frozen experts said, computed once and kept on disk.

Experts are frozen, so a reply is a function of its inputs. Records are found by the hash of those
inputs (`keys.py`), live in immutable segments (`segments.py`), and are never changed. Several
processes may share a folder: each writes files of its own and sees the others' on its next miss.
Two that compute the same record both save it; either file will do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gradejax.experts.segments import (
    SUFFIX,
    TEMPORARY_PREFIX,
    CorruptSegment,
    Record,
    StoreWriteError,
    read_keys,
    read_records,
    write_segment,
)

# Saving a segment takes seconds; an older temporary file belongs to a process that was killed.
_STALE_SECONDS = 3600.0


@dataclasses.dataclass
class Counters:
    """Of one store object: records found, not found, saved; damaged files; rows generated."""

    hits: int = 0
    misses: int = 0
    saved: int = 0
    corrupt: int = 0
    calls: int = 0


class FeatureStore:
    """A folder of records found by content key.

    Args:
      path: the folder; made when it does not exist.

    Raises: ValueError when `path` is something else than a folder; StoreWriteError when it
      cannot be made.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"feature store {str(path)!r} is not a folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreWriteError(error.errno, f"could not make the feature store: "
                                  f"{error.strerror}", str(self.path)) from error
        self.counters = Counters()
        self._segments: dict[str, list[str]] = {}  # file name -> keys
        self._index: dict[str, str] = {}  # key -> file that has it
        self._bad: set[str] = set()
        self._lock = threading.RLock()
        self._remove_stale()
        self.refresh()

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: str) -> bool:
        return key in self._index

    def refresh(self) -> None:
        """Look for segments that other processes have saved since."""
        with self._lock:
            names = sorted(p.name for p in self.path.glob(f"*{SUFFIX}"))
            for name in names:
                if name in self._segments or name in self._bad:
                    continue
                try:
                    self._add(name, read_keys(self.path / name))
                except FileNotFoundError:
                    continue  # another process has just put it aside
                except CorruptSegment as error:
                    self._put_aside(name, error)

    def get_many(self, keys: Sequence[str]) -> list[Record | None]:
        """Records in the order of `keys`, None where there is none.

        A damaged segment is reported by a warning that names it and put aside (renamed to
        `*.corrupt`); its records count as not there, so that the caller computes them again.
        """
        with self._lock:
            if any(key not in self._index for key in keys):
                self.refresh()
            found: dict[str, Record] = {}
            wanted = set(keys)
            # A key of a damaged segment may stand in another one: go on until nothing is left.
            while names := {self._index[k] for k in wanted if k in self._index and k not in found}:
                for name in sorted(names):
                    try:
                        records = read_records(self.path / name)
                    except FileNotFoundError:
                        self._forget(name)
                    except CorruptSegment as error:
                        self._put_aside(name, error)
                    else:
                        found |= {r.key: r for r in records if r.key in wanted}
            hits = sum(key in found for key in keys)
            self.counters.hits += hits
            self.counters.misses += len(keys) - hits
            return [found.get(key) for key in keys]

    def put_many(self, records: Iterable[Record]) -> None:
        """Save the records that are not there yet, as one file. Returns when they are on disk.

        Raises: StoreWriteError (disk full): nothing earlier is lost, no partial file is left.
        """
        with self._lock:
            new = {r.key: r for r in reversed(list(records)) if r.key not in self._index}
            if not new:
                return
            path = write_segment(self.path, list(new.values()))
            self._add(path.name, list(new))
            self.counters.saved += len(new)

    def get_arrays(self, keys: Sequence[str]) -> list[Mapping[str, np.ndarray] | None]:
        """Named arrays saved by `put_arrays`, None where there are none."""
        return [None if r is None else r.arrays for r in self.get_many(keys)]

    def put_arrays(self, arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Save {key: {name: array}}; keys from `keys.content_key(kind, parts)`."""
        self.put_many([Record(key, {}, named) for key, named in arrays.items()])

    def _add(self, name: str, keys: list[str]) -> None:
        self._segments[name] = keys
        for key in keys:
            self._index.setdefault(key, name)

    def _forget(self, name: str) -> None:
        for key in self._segments.pop(name, ()):
            if self._index.get(key) == name:
                del self._index[key]
        for other, keys in self._segments.items():
            for key in keys:
                self._index.setdefault(key, other)

    def _put_aside(self, name: str, error: Exception) -> None:
        self._forget(name)
        self._bad.add(name)
        self.counters.corrupt += 1
        path = self.path / name
        # Read-only, or another process was faster: `_bad` keeps it out either way.
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".corrupt"))
        warnings.warn(f"feature store: {path} is damaged ({error}); it is put aside and its "
                      "records are computed again", RuntimeWarning, stacklevel=3)

    def _remove_stale(self) -> None:
        for path in self.path.glob(f"{TEMPORARY_PREFIX}*"):
            try:
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()
            except OSError:
                continue  # its writer has just finished, or the disk is read-only
