"""The log is the record: one row per (attempt, step), superseded rows marked."""

import json

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from gradejax.training.files import StorageError
from gradejax.training.logging import RunLog, divide, read_metrics, read_rows


def write(path, begin, steps, value=1.0):
    with RunLog(path) as log:
        log.begin(begin)
        for step in steps:
            log.write(step, {"loss": value * step}, {"step": 0.5})


def test_rows_after_the_restored_step_are_superseded(tmp_path):
    # F08
    path = tmp_path / "metrics.jsonl"
    write(path, 195, range(196, 206), value=-1.0)
    write(path, 200, range(201, 207))
    final = read_metrics(path)
    assert [r["step"] for r in final] == list(range(196, 207))
    # every repeated step shows the second attempt's value
    assert [r["loss"] for r in final] == [-196, -197, -198, -199, -200, *range(201, 207)]
    superseded = [r for r in read_rows(path) if r.get("superseded")]
    assert [r["step"] for r in superseded] == [201, 202, 203, 204, 205]
    assert {r["attempt"] for r in superseded} == {1}
    assert {r["attempt"] for r in read_rows(path) if r["loss"] > 0} == {2}


def test_a_second_resume_supersedes_both_earlier_attempts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 0, [1, 2, 3, 4])
    write(path, 2, [3, 4, 5])
    write(path, 1, [2, 3])
    assert [(r["step"], r["attempt"]) for r in read_metrics(path, wall_clock=True)] == [
        (1, 1), (2, 3), (3, 3),
    ]  # fmt: skip
    assert len(read_rows(path)) == 9


def test_resumed_rows_equal_an_unbroken_run(tmp_path):
    write(tmp_path / "a", 0, range(1, 8))
    write(tmp_path / "b", 0, range(1, 6))
    write(tmp_path / "b", 4, range(5, 8))
    assert read_metrics(tmp_path / "a") == read_metrics(tmp_path / "b")
    with_clock = [read_metrics(tmp_path / n, wall_clock=True) for n in "ab"]
    assert with_clock[0] != with_clock[1]


def test_a_torn_last_line_is_dropped_and_a_torn_middle_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 0, [1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert [r["step"] for r in read_metrics(path)] == [1]
    write(path, 1, [2, 3])
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3]
    path.write_bytes(whole[:20] + b"\n" + whole)
    with pytest.raises(ValueError, match="metrics.jsonl, line 1 is damaged"):
        read_metrics(path)


def test_begin_again_at_the_same_place_is_the_same_attempt(tmp_path):
    with RunLog(tmp_path / "m") as log:
        assert log.begin(0) == 1
        log.write(1, {"loss": 1.0})
        assert log.begin(1) == 1
        log.write(2, {"loss": 1.0})
    with RunLog(tmp_path / "m") as log:
        assert log.begin(2) == 2
    assert read_metrics(tmp_path / "none") == []


def test_sums_are_divided_once():
    # two shards of 1 and 3 items: the mean of means would be (4 + 2) / 2 = 3
    assert divide({"loss": (np.float32(4 + 6), np.int32(1 + 3))}) == {"loss": 2.5}
    got = divide({
        "usage": (np.array([1.0, 3.0, 0.0]), np.array([2, 2, 0])), "share": (np.ones(2), 4),
        "lr": np.float32(0.1), "none": (0.0, 0),
    })  # fmt: skip
    assert got == {
        "usage": [0.5, 1.5, None], "share": [0.25, 0.25], "lr": float(np.float32(0.1)),
        "none": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"metric 'm' has shape \(2, 2\)"):
        divide({"m": (np.ones((2, 2)), 1)})
    with pytest.raises(ValueError, match="must not be called .* got 'step'"):
        divide({"step": 1.0})


def test_numbers_survive_exactly_and_the_file_is_strict_json(tmp_path):
    means = {"x": 0.1 + 0.2, "n": float("nan"), "i": float("-inf"), "v": [1e-300, float("inf")]}
    with RunLog(tmp_path / "m") as log:
        log.begin(0)
        log.write(1, means)

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    for line in (tmp_path / "m").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    (row,) = read_metrics(tmp_path / "m")
    assert row["x"] == 0.1 + 0.2 and np.isnan(row["n"]) and row["i"] == -np.inf
    assert row["v"] == [1e-300, np.inf]


def scalars(folder):
    """Tags and values of all event files, read by the record format: length, crc, data, crc."""
    out, purged = [], []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            out += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            if event.HasField("session_log"):
                purged.append(event.step)
    return out, purged


def test_events_hold_every_scalar_and_a_resume_purges_later_ones(tmp_path):
    for begin, steps in ((0, [1, 2, 3]), (2, [3])):
        with RunLog(tmp_path / "m", tmp_path / "events") as log:
            log.begin(begin)
            for step in steps:
                log.write(step, {"loss": 0.5, "usage": [0.25, None], "none": None}, {"step": 2.0})
    values, purged = scalars(tmp_path / "events")
    assert [v for v in values if v[0] == 2] == [
        (2, "loss", 0.5), (2, "usage/0", 0.25), (2, "seconds/step", 2.0),
    ]  # fmt: skip
    assert purged == [3]  # TensorBoard drops the first attempt's step 3


def test_a_full_disk_is_said_and_written_rows_stay(tmp_path, monkeypatch):
    path = tmp_path / "m"
    with RunLog(path) as log:
        log.begin(0)
        log.write(1, {"loss": 1.0})
        real = log._file

        class Full:
            """Takes half a row, then refuses."""

            def __init__(self):
                self.calls = 0

            def write(self, data):
                self.calls += 1
                if self.calls > 1:
                    raise OSError(28, "No space left on device")
                return real.write(data[: len(data) // 2])

            def __getattr__(self, name):
                return getattr(real, name)

        log._file = Full()
        with pytest.raises(StorageError, match="No space left on device; rows written before"):
            log.write(2, {"loss": 1.0})
        log._file = real
        log.write(2, {"loss": 3.0})
    assert [r["loss"] for r in read_metrics(path)] == [1.0, 3.0]


def test_write_before_begin_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="begin"):
        RunLog(tmp_path / "m").write(1, {})
