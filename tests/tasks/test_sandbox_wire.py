"""Frames of plain values: exact types both ways, and nothing else gets through."""

import math
import os
import struct

import pytest

from gradejax.tasks.sandbox import wire

VALUES = [
    None, True, False, 0, -1, 2**53 - 1, 2**53, -(10**5000), 0.0, 1.5, math.inf, -math.inf,
    "", "é\ud800\n", b"", b"\xff", 1 + 2j, complex(math.inf, 0), [], [1, [2, (3,)]], (), ((),),
    {}, {1: {2: [3]}}, {(1, "a"): None}, set(),
    {1, "a", (2,)}, frozenset({1}), {frozenset({1}): {2}},
]  # fmt: skip


def through(message):
    read, write = os.pipe()
    try:
        wire.write_frame(write, message)
        return wire.read_frame(read, 1 << 20)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("value", VALUES, ids=[str(i) for i in range(len(VALUES))])
def test_round_trip(value):
    back = wire.unpack(through(wire.pack(value)))
    assert back == value and type(back) is type(value)


def test_bool_and_float_do_not_become_int():
    assert [type(x) for x in wire.unpack(through(wire.pack([True, 1, 1.0])))] == [bool, int, float]
    assert math.isnan(wire.unpack(through(wire.pack(math.nan))))


@pytest.mark.parametrize("value", [object(), len, lambda: 1, iter([]), range(3), int, [object()]])
def test_other_values_are_refused(value):
    with pytest.raises(wire.NotPlain, match="plain values"):
        wire.pack(value)


@pytest.mark.parametrize(
    "data",
    [{}, {"a": 1}, [], ["x"], [1], [None], [["l"]], ["i"], ["i", "zz"], ["i", 5], ["c", 1],
     ["c", "a", "b"], ["b", 3], ["b", "q"], ["d", 1], ["d", ["l"], 1], ["s", ["l"]], ["f", ["d"]],
     ["l", {}]],
)  # fmt: skip
def test_what_no_pack_has_written_is_refused(data):
    with pytest.raises(wire.BadFrame):
        wire.unpack(data)


def test_frames_that_lie():
    read, write = os.pipe()
    os.write(write, struct.pack("!I", 101) + b"1" * 101)
    with pytest.raises(wire.BadFrame, match="over the limit of 100"):
        wire.read_frame(read, 100)
    os.close(read)
    os.close(write)
    for body in (b"", b"nul", b"\xff\xff", b"[" * 5000, b"1" * 5000):
        read, write = os.pipe()
        os.write(write, struct.pack("!I", len(body)) + body)
        with pytest.raises(wire.BadFrame, match="not JSON"):
            wire.read_frame(read, 1 << 20)
        os.close(write)
        with pytest.raises(EOFError):
            wire.read_frame(read, 1 << 20)
        os.close(read)
