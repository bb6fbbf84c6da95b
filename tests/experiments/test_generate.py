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
    assert out.out.endswith("\n") and not out.out.endswith("\n\n")
    assert out.out.splitlines()[-1].startswith("ANSWER: ") and "886,912 parameters" in out.err


def test_what_is_wrong_is_said_in_one_line(capsys):
    assert generate.main(["--model", MODEL, "--prompt", "1", "--temperature", "-1"]) == 1
    assert capsys.readouterr().err == "error: temperature must be >= 0 (0 is greedy), got -1.0\n"
    for empty in ("", " \n"):
        assert generate.main(["--model", MODEL, "--prompt", empty]) == 1
        assert capsys.readouterr().err == "error: the prompt is empty; expected a text\n"
    with pytest.raises(SystemExit):
        generate.main(["--model", MODEL, "--prompt", "1", "--raw", "--system", "a"])
    assert "usage: python -m experiments.generate" in capsys.readouterr().err


def test_benches_are_listed(capsys):
    assert bench(["nosuch"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no bench 'nosuch'; choose from decode, score, lora, load, gpu")
    assert all(name in said for name in BENCHES)
    assert bench([]) == 2 and "error" not in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_usage_says_the_command_that_was_given(name, capsys):
    with pytest.raises(SystemExit):
        bench([name, "--help"])
    assert f"usage: python -m experiments.bench {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench([name, "--nosuch"])
    assert f"python -m experiments.bench {name}: error" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decode", "score"])
def test_prompts_are_drawn_from_the_models_own_ids(name, capfd, monkeypatch):
    small = ["--batch", "2", "--new", "4"] if name == "decode" else ["--scored", "4"]
    small += ["--prompt", "8", "--pairs", "1", "--model", MODEL]
    assert bench([name, *small]) == 0
    assert json.loads(capfd.readouterr().out)["ours_tokens_per_s"] > 0
    assert bench([name, *small[:-1], "no/such"]) == 1
    assert capfd.readouterr().err.startswith("error: ")
    long = ["--new", "5000"] if name == "decode" else ["--prompt", "5000"]
    assert bench([name, *small, *long]) == 1
    assert "rows of 50" in capfd.readouterr().err


def test_without_a_gpu_the_bench_says_so(capsys):
    assert bench(["gpu"]) == 0
    assert "no GPU here" in json.loads(capsys.readouterr().out)["skipped"]
