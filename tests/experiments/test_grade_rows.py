"""Odd lines in files for `experiments.grade`: said before any verdict, or written all the same."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from experiments.grade import main

GOOD = {
    "choice": {"benchmark": "mmlu", "completion": "The answer is C.", "gold": "C"},
    "number": {"benchmark": "gsm8k", "completion": "ANSWER: 5", "gold": "5"},
    "integer": {"benchmark": "aime2025", "completion": "ANSWER: 5", "gold": "5"},
    "text": {"benchmark": "my_words", "completion": "ANSWER: Paris", "gold": "Paris"},
}
NAN = float("nan")
ODD = {
    "choice": [
        {"gold": ["C"]}, {"gold": {"C": 1}}, {"gold": True}, {"gold": 2.5}, {"gold": NAN},
        {"gold": float("inf")}, {"choices": 5}, {"choices": "abcd"}, {"choices": True},
        {"choices": {"a": 1, "b": 2, "c": 3}}, {"choices": ["a", 2, "c"]}, {"choices": ["a"]},
        {"choices": ["a", None, "c"]}, {"choices": [str(i) for i in range(27)]},
    ],
    "number": [
        {"gold": NAN}, {"gold": "NaN"}, {"gold": "about four"}, {"gold": False}, {"gold": [5]},
        {"gold": "1/0"}, {"completion": 5}, {"completion": ["5"]}, {"completion": True},
        {"finish_reason": ["length"]}, {"finish_reason": 1}, {"finish_reason": False},
        {"id": True}, {"id": [1]}, {"id": 1.5}, {"id": NAN}, {"id": {}}, {"benchmark": 5},
        {"benchmark": ["gsm8k"]}, {"benchmark": None}, {"benchmark": " "},
    ],
    "integer": [{"gold": "about four"}, {"gold": 1.5}, {"gold": "-1"}, {"gold": NAN}],
    "text": [{"gold": NAN}, {"gold": True}, {"gold": ["Paris"]}, {"gold": None}],
}  # fmt: skip


def run(path, capsys, *options):
    code = main([str(path), *options])
    said = capsys.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "kind, change", [(kind, change) for kind, changes in ODD.items() for change in changes]
)
def test_an_odd_value_is_said_with_its_line_before_any_verdict(kind, change, tmp_path, capsys):
    good = GOOD[kind]
    path = written(tmp_path / "o.jsonl", good, good, good | change)
    code, lines, said = run(path, capsys)
    assert code == 2 and lines == []
    assert said.startswith(f"error: {path}:3: ") and next(iter(change)) in said


def test_whole_numbers_may_be_written_with_a_point(tmp_path, capsys):
    rows = [
        GOOD["choice"] | {"gold": 2.0, "id": 7.0},
        GOOD["choice"] | {"gold": 2, "choices": ["p", "q", "r"]},
        GOOD["choice"] | {"choices": []},
        GOOD["number"] | {"gold": 5.0},
        GOOD["number"] | {"gold": 2.5, "completion": "ANSWER: 2.5"},
        GOOD["integer"] | {"gold": 5.0, "labels": {"a tool's": "own"}, "test": 5},
    ]
    code, lines, said = run(written(tmp_path / "o.jsonl", *rows), capsys)
    assert code == 0, said
    verdicts = [line for line in lines if "id" in line]
    assert [v["outcome"] for v in verdicts] == ["correct"] * 6 and verdicts[0]["id"] == 7


@pytest.mark.parametrize(
    "change", [{"answer": ["B"]}, {"choices": "abcd"}, {"choices": 5}, {"labels": 5}, {"id": [1]}]
)
def test_items_are_checked_too(change, tmp_path, capsys):
    item = {"id": "q", "question": "?", "choices": ["a", "b"], "answer": "B"}
    (tmp_path / "data").mkdir()
    path = written(tmp_path / "data" / "mine.test.jsonl", item, item | change)
    row = {"benchmark": "mine", "id": "q", "completion": "ANSWER: B"}
    code, lines, said = run(
        written(tmp_path / "o.jsonl", row), capsys, "--data", str(tmp_path / "data")
    )
    assert code == 2 and lines == [] and said.startswith(f"error: {path}:2: ")


def test_a_program_without_tests_is_said_before_any_verdict(tmp_path, capsys):
    code = {"benchmark": "humaneval", "id": "h", "completion": "def f(): pass"}
    path = written(tmp_path / "o.jsonl", GOOD["number"], code)
    code, lines, said = run(path, capsys)
    assert code == 2 and lines == [] and f"{path}:2: a program is graded" in said


def test_deep_nesting_names_its_line(tmp_path, capsys):
    path = written(tmp_path / "o.jsonl", GOOD["text"])
    for depth in (100_000, 2_000_000):
        with open(path, "a", encoding="utf-8") as file:
            file.write("[" * depth + "]" * depth + "\n")
        code, lines, said = run(path, capsys)
        assert code == 2 and lines == [] and f"{path}:2: " in said and "nested" in said


@pytest.mark.parametrize("content", ["", "\n", " \n\n", "\ufeff"])
def test_an_empty_file_is_an_error(content, tmp_path, capsys):
    path = tmp_path / "o.jsonl"
    path.write_text(content, encoding="utf-8")
    code, lines, said = run(path, capsys)
    assert code == 2 and lines == [] and f"{path}: " in said and "empty" in said


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "cp1252"])
def test_no_text_ends_the_run(encoding, tmp_path):
    texts = ["caf\u00e9", "\ud800", "a\u2028b", "a\x85b", "\U0001f600 \u6771\u4eac", "Paris"]
    rows = [
        {"benchmark": "my_w\u00f6rds", "id": f"{i}{text}", "completion": f"ANSWER: {text}",
         "gold": text}
        for i, text in enumerate(texts)
    ]  # fmt: skip
    path = written(tmp_path / "o.jsonl", *rows)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.grade", str(path)], capture_output=True,
        cwd=pathlib.Path(__file__).parents[2], env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.decode(encoding).splitlines()]
    assert [line["id"] for line in lines[:-1]] == [row["id"] for row in rows]
    assert lines[-1]["n"] == len(rows)
    if encoding == "utf-8":  # what can be written is left to be read
        assert "caf\u00e9" in done.stdout.decode()


def test_a_repeated_key_is_refused(tmp_path, capsys):
    """Of two golds the last would decide without a word (F05)."""
    path = tmp_path / "twice.jsonl"
    path.write_text('{"benchmark": "gsm8k", "completion": "ANSWER: 5", "gold": "5", "gold": "6"}\n')
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and f"{path}:1: " in captured.err
    assert "repeated key(s) ['gold']" in captured.err
