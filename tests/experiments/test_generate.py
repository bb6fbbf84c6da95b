"""The one-line trial of a model, and the front of the benches."""

import json
import pathlib

import pytest

from experiments import generate
from experiments.bench.__main__ import BENCHES
from experiments.bench.__main__ import main as bench

MODEL = str(pathlib.Path(__file__).parents[2] / "checkpoints" / "arithmetic")


def test_a_reply_is_printed_as_it_is_drawn(capsys):
    assert generate.main(["--model", MODEL, "--prompt", "Calculate 5 - 3 + 6."]) == 0
    out = capsys.readouterr()
    assert out.out.splitlines()[-1].startswith("ANSWER: ") and "886,912 parameters" in out.err


def test_what_is_wrong_is_said_in_one_line(capsys):
    assert generate.main(["--model", MODEL, "--prompt", "1", "--temperature", "-1"]) == 1
    assert capsys.readouterr().err == "error: temperature must be >= 0 (0 is greedy), got -1.0\n"
    with pytest.raises(SystemExit):
        generate.main(["--model", MODEL, "--prompt", "1", "--raw", "--system", "a"])


def test_benches_are_listed(capsys):
    assert bench(["nosuch"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in BENCHES)


def test_without_a_gpu_the_bench_says_so(capsys):
    assert bench(["gpu"]) == 0
    assert "no GPU here" in json.loads(capsys.readouterr().out)["skipped"]
