"""The one-line trial of a model, and the front of the benches."""

import json
import pathlib
import re

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


@pytest.mark.parametrize("arguments, words", [
    (["--temperature", "-1"], r"temperature must be a number >= 0 \(0 is greedy.*, got -1.0"),
    (["--temperature", "nan"], "temperature must be a number >= 0 .*, got nan"),
    (["--top-k", "-1"], "top_k .* must be a whole number of at least 0, got -1"),
    (["--top-p", "0"], r"top_p must be a number in \(0, 1\], got 0.0"),
    (["--max-new-tokens", "0"], "--max-new-tokens must be a whole number of at least 1, got 0"),
    (["--max-new-tokens", "500"], "passes the model's context of 384"),
    (["--seed", "-1"], "--seed must be a whole number from 0 to 4294967295, got -1"),
    (["--prompt", ""], "the prompt is empty; expected a text"),
    (["--prompt", " \n"], "the prompt is empty; expected a text"),
    (["--prompt", "\udcff"], r"the prompt holds the lone surrogate U\+DCFF"),
    (["--model", "no/such"], "no/such"), (["--model", ""], "path_or_id must be a folder"),
    (["--adapter", "no/such"], "no/such"), (["--revision", "main"], "local path"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(arguments, words, capsys):
    assert generate.main(["--model", MODEL, "--prompt", "1", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == "" and re.fullmatch(f"error: .*{words}.*\n", said)


def test_wrong_arguments_show_the_usage(capsys):
    for wrong in (["--raw", "--system", "a"], ["--top-k", "1.5"], ["--dtype", "int4"]):
        with pytest.raises(SystemExit) as stopped:
            generate.main(["--model", MODEL, "--prompt", "1", *wrong])
        assert stopped.value.code == 2
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
