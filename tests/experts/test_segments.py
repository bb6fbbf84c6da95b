import errno
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from gradejax.experts import segments
from gradejax.experts.segments import Record, read_keys, read_records, write_segment


def record(key, **arrays):
    return Record(key, {"text": f"said {key} é\ud800"}, arrays)


def test_what_is_written_is_read(tmp_path):
    wide = np.arange(12, dtype=">f8").reshape(3, 4).T  # big-endian, not contiguous
    made = [record("a", h=np.float32([1, np.nan, -np.inf]), t=np.int32([7])),
            record("b", w=wide, e=np.zeros((0, 3), np.float16), s=np.float64(2.5)),
            record("c", b=np.array([1.5], ml_dtypes.bfloat16), m=np.array([True, False]))]
    path = write_segment(tmp_path, made)
    assert read_keys(path) == ["a", "b", "c"]
    for want, got in zip(made, read_records(path), strict=True):
        assert (got.key, got.meta) == (want.key, want.meta)
        assert got.arrays.keys() == want.arrays.keys()
        for name, value in want.arrays.items():
            np.testing.assert_array_equal(got.arrays[name], value)
            assert got.arrays[name].dtype == np.asarray(value).dtype.newbyteorder("=")
            assert got.arrays[name].shape == np.shape(value)
            assert got.arrays[name].flags.owndata  # keeps no segment in memory


def test_objects_are_refused_not_pickled(tmp_path):
    with pytest.raises(ValueError, match="array 'x' has dtype object; choose from"):
        write_segment(tmp_path, [record("a", x=np.array([{}]))])
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_byte_is_noticed(tmp_path):
    path = write_segment(tmp_path, [record("a", h=np.float32([1, 2, 3]))])
    good = path.read_bytes()
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ 0x10]) + good[i + 1:])
        with pytest.raises(segments.CorruptSegment):
            read_records(path)


def test_every_truncation_is_noticed_already_in_the_index(tmp_path):
    path = write_segment(tmp_path, [record("a", h=np.float32([1, 2, 3]))])
    good = path.read_bytes()
    for n in range(len(good)):
        path.write_bytes(good[:n])
        with pytest.raises(segments.CorruptSegment):
            read_keys(path)


def test_another_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "_FORMAT", 2)
    path = write_segment(tmp_path, [record("a")])
    assert read_keys(path) == ["a"]
    monkeypatch.undo()
    with pytest.raises(segments.CorruptSegment, match="format 2, this version reads 1"):
        read_keys(path)


def test_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    kept = write_segment(tmp_path, [record("a")])

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(segments.StoreWriteError, match="No space left on device.*intact") as got:
        write_segment(tmp_path, [record("b")])
    assert got.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == [kept] and read_keys(kept) == ["a"]


def test_a_real_limit_on_file_size_is_a_clear_error(tmp_path):
    code = """
import resource, signal, sys, pathlib, numpy as np
from gradejax.experts.segments import Record, StoreWriteError, write_segment
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
folder = pathlib.Path(sys.argv[1])
write_segment(folder, [Record("small", {}, {})])
try:
    write_segment(folder, [Record("big", {}, {"x": np.zeros(10_000)})])
except StoreWriteError as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert "refused" in done.stdout and "could not save 1 records" in done.stdout, done.stderr
    (only,) = tmp_path.iterdir()
    assert read_keys(only) == ["small"]
