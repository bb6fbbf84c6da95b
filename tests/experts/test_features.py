import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from gradejax.experts.features import FeatureStore
from gradejax.experts.segments import Record, StoreWriteError

ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def records(names, value=1.0):
    return [Record(n, {"n": n}, {"x": np.full(3, value, np.float32)}) for n in names]


def names_of(found):
    return [None if r is None else r.meta["n"] for r in found]


def test_found_in_the_order_of_the_keys_and_counted(tmp_path):
    store = FeatureStore(tmp_path / "new" / "folder")
    store.put_many(records("ab"))
    store.put_many(records("cd"))
    for other in (store, FeatureStore(store.path)):
        assert names_of(other.get_many(["d", "no", "a", "a"])) == ["d", None, "a", "a"]
        assert (other.counters.hits, other.counters.misses) == (3, 1)
    assert len(store) == 4 and "a" in store and "no" not in store


def test_a_record_is_saved_once_and_never_changed(tmp_path):
    store = FeatureStore(tmp_path)
    store.put_many(records("a", 1.0) + records("a", 2.0))
    store.put_many(records("a", 3.0))
    assert store.counters.saved == 1 and len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(store.get_many(["a"])[0].arrays["x"], [1, 1, 1])


def test_named_arrays(tmp_path):
    store = FeatureStore(tmp_path)
    store.put_arrays({"k": {"trunk": np.ones((2, 3)), "mask": np.array([True, False])}})
    first, second = FeatureStore(tmp_path).get_arrays(["k", "no"])
    assert first["trunk"].shape == (2, 3) and first["mask"].tolist() == [True, False]
    assert second is None


def test_two_stores_see_each_other(tmp_path):
    one, two = FeatureStore(tmp_path), FeatureStore(tmp_path)
    one.put_many(records("a"))
    assert names_of(two.get_many(["a"])) == ["a"]


@pytest.mark.parametrize("damage", ["flip_payload", "flip_header", "truncate", "empty"])
def test_damage_is_reported_put_aside_and_only_that_file_is_lost(tmp_path, damage):
    store = FeatureStore(tmp_path)
    store.put_many(records("ab"))
    (bad,) = tmp_path.iterdir()
    store.put_many(records("cd"))
    data = bytearray(bad.read_bytes())
    if damage.startswith("flip"):
        data[60 if damage == "flip_header" else -5] ^= 1
    else:
        del data[0 if damage == "empty" else -1:]
    bad.write_bytes(data)
    with pytest.warns(RuntimeWarning, match=f"{bad.name} is damaged.*computed again"):
        fresh = FeatureStore(tmp_path)
        assert names_of(fresh.get_many(["a", "b", "c", "d"])) == [None, None, "c", "d"]
    assert fresh.counters.corrupt == 1
    assert not bad.exists() and bad.with_suffix(".corrupt").exists()
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        fresh.put_many(records("ab"))
        assert names_of(FeatureStore(tmp_path).get_many(list("abcd"))) == list("abcd")


def test_a_damaged_file_that_cannot_be_renamed_is_said_once(tmp_path, monkeypatch):
    FeatureStore(tmp_path).put_many(records("a"))
    (bad,) = tmp_path.iterdir()
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(type(bad), "rename", lambda *_: (_ for _ in ()).throw(OSError(30, "ro")))
    store = FeatureStore(tmp_path)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert store.get_many(["a"]) == [None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get_many(["a"]) == [None] and store.counters.corrupt == 1


def test_a_double_in_another_file_stands_in_for_a_damaged_one(tmp_path):
    one, two = FeatureStore(tmp_path), FeatureStore(tmp_path)
    one.put_many(records("a", 1.0))
    (bad,) = tmp_path.iterdir()
    two.put_many(records("ab", 1.0))  # has not looked since: saves "a" again
    store = FeatureStore(tmp_path)
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert names_of(store.get_many(["a", "b"])) == ["a", "b"]


def test_a_file_that_vanishes_is_a_miss(tmp_path):
    store = FeatureStore(tmp_path)
    store.put_many(records("a"))
    next(tmp_path.iterdir()).unlink()
    assert store.get_many(["a"]) == [None] and "a" not in store


def test_full_disk_keeps_what_was_saved(tmp_path, monkeypatch):
    store = FeatureStore(tmp_path)
    store.put_many(records("a"))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StoreWriteError):
        store.put_many(records("b"))
    monkeypatch.undo()
    assert names_of(store.get_many(["a", "b"])) == ["a", None]
    store.put_many(records("b"))
    assert names_of(FeatureStore(tmp_path).get_many(["a", "b"])) == ["a", "b"]


def test_a_path_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        FeatureStore(tmp_path / "f")


def test_only_old_temporary_files_are_cleared(tmp_path):
    old, young = tmp_path / ".tmp-old", tmp_path / ".tmp-young"
    for path in (old, young):
        path.write_text("half a segm")
    os.utime(old, (time.time() - 7200,) * 2)
    assert len(FeatureStore(tmp_path)) == 0
    assert not old.exists() and young.exists()  # a living process may be writing the young one


WRITER = """
import sys, numpy as np
from gradejax.experts.features import FeatureStore
from gradejax.experts.segments import Record
store, who, n = FeatureStore(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for i in range(n):
    keys = [f"{who}-{i}-{j}" for j in range(4)] + [f"both-{i}"]
    store.put_many(Record(k, {"n": k}, {"x": np.full(50_000, i, np.float32)}) for k in keys)
    print(i, flush=True)
"""


def start_writer(path, who, n):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), who, str(n)], env=ENV,
                            stdout=subprocess.PIPE, text=True)


def test_killed_while_writing_loses_at_most_the_segment_at_hand(tmp_path):
    process = start_writer(tmp_path, "w", 100_000)
    for line in process.stdout:
        if int(line) == 10:
            break
    process.send_signal(signal.SIGKILL)
    said = [10, *map(int, process.stdout)]
    assert process.wait() == -signal.SIGKILL
    with warnings.catch_warnings():  # nothing is damaged, only absent
        warnings.simplefilter("error")
        store = FeatureStore(tmp_path)
        last = max(said)
        keys = [f"w-{i}-{j}" for i in range(last + 1) for j in range(4)]
        found = store.get_many(keys)
    assert names_of(found) == keys
    assert all(r.arrays["x"][0] == int(k.split("-")[1])
               for k, r in zip(keys, found, strict=True))
    assert len(store) <= 5 * (last + 2)


def test_two_processes_write_at_once(tmp_path):
    writers = [start_writer(tmp_path, who, 15) for who in "pq"]
    for process in writers:
        process.communicate()
        assert process.returncode == 0
    keys = [f"{w}-{i}-{j}" for w in "pq" for i in range(15) for j in range(4)]
    keys += [f"both-{i}" for i in range(15)]
    store = FeatureStore(tmp_path)
    assert names_of(store.get_many(keys)) == keys and len(store) == len(keys)
    assert list(tmp_path.glob(".tmp-*")) == []


def test_many_records_lie_in_few_files_and_come_back_in_order(tmp_path):
    """Loading stays fast because a file holds a chunk; the seconds are a benchmark's business."""
    store = FeatureStore(tmp_path)
    keys = [f"{i:064x}" for i in range(2_560)]
    for i in range(0, len(keys), 256):
        store.put_many(
            Record(k, {"text": k}, {"hidden": np.full(8, int(k, 16), np.float32)})
            for k in keys[i:i + 256]
        )
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 10
    found = FeatureStore(tmp_path).get_many(keys[::-1])
    assert [r.meta["text"] for r in found] == keys[::-1]
    assert [float(r.arrays["hidden"][0]) for r in found] == list(range(2_560))[::-1]
