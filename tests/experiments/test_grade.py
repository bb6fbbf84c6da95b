"""`python -m experiments.grade`: files of other tools in, verdicts that stand out."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

from experiments.grade import main
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.prompts import FORMATS

# Verdicts of completions.jsonl that are not ours: (benchmark, id, source's verdict) -> ours, why.
DISAGREEMENTS = {
    ("humaneval", "HumanEval/38", False): (
        "correct",
        "the reply defines decode_cyclic correctly; its source ran it without the prompt's "
        "encode_cyclic, which the tests call and the prompt had given",
    ),
}
HAS_SANDBOX = importlib.util.find_spec("gradejax.tasks.sandbox") is not None


def graded(capsys, rows, folder, *options):
    """(exit code, verdict lines, count lines by benchmark, what went to stderr)."""
    path = folder / "outputs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code = main([str(path), *options])
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    verdicts = [line for line in lines if "id" in line]
    return code, verdicts, {x["benchmark"]: x for x in lines if "id" not in x}, said.err


def test_all_verdicts_of_published_logs_are_matched_or_explained(shared, tmp_path, capsys):
    data = pathlib.Path(shared) / "data"
    lines = (data / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 89
    if not HAS_SANDBOX:
        rows = [row for row in rows if row["benchmark"] != "humaneval"]
    code, verdicts, counts, _ = graded(capsys, rows, tmp_path, "--data", str(data))
    assert code == 0 and [v["id"] for v in verdicts] == [row["id"] for row in rows]
    differ = {}
    for row, verdict in zip(rows, verdicts, strict=True):
        if (verdict["outcome"] == "correct") != row["correct"]:
            differ[row["benchmark"], row["id"], row["correct"]] = verdict["outcome"]
    expected = {key: ours for key, (ours, _) in DISAGREEMENTS.items()}
    assert differ == (expected if HAS_SANDBOX else {})
    # replies that break off are no answers, not wrong ones
    assert counts["mmlu_pro"]["counts"] == {
        "correct": 9, "wrong": 11, "no_answer": 3, "truncated": 0, "missing": 0
    }  # fmt: skip
    # where the source read an answer, ours is the same one
    for row, verdict in zip(rows, verdicts, strict=True):
        if row["benchmark"] in ("mmlu", "mmlu_pro", "arc_challenge"):
            assert verdict["answer"] == row["recorded_pred"], row["id"]


@pytest.mark.parametrize(
    "name, kind, items", [("gsm8k.test", "number", 1319), ("math500.test", "math", 500)]
)
def test_every_gold_solution_is_read_as_its_own_answer(shared, name, kind, items):
    task = make_task(name, kind, FORMATS["open"])
    path = pathlib.Path(shared) / "data" / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == items
    failed = []
    for row in rows:
        judged = task.judge(row["solution"], "stop", Example(row["id"], "?", None, row["answer"]))
        if not judged.outcome is judged.strict is Outcome.RIGHT:
            failed.append((row["id"], row["answer"], judged.answer))
    assert failed == []  # no exceptions


def test_golds_of_choices_are_read_as_themselves(shared, tmp_path, capsys):
    data = pathlib.Path(shared) / "data"
    for name in ("arc_challenge", "mmlu_pro", "bbh_navigate", "mmlu_redux"):
        with open(data / f"{name}.test.jsonl", encoding="utf-8") as file:
            items = [json.loads(line) for line in file][:300]
        rows = [
            {"benchmark": name, "id": item["id"], "completion": f"So the answer is {answer}.",
             "gold": answer}
            for item in items
            for answer in {item["answer"], item.get("orig_answer_key", item["answer"])}
        ]  # fmt: skip
        code, verdicts, _, _ = graded(capsys, rows, tmp_path, "--data", str(data))
        assert code == 0 and {v["outcome"] for v in verdicts} == {"correct"}, name


def test_digit_labels_of_arc(shared, tmp_path, capsys):
    data = pathlib.Path(shared) / "data"
    with open(data / "arc_challenge.test.jsonl", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    digits = [item for item in items if item["orig_labels"][0] == "1"]
    assert len(digits) == 22
    rows = []
    for item in digits:
        reply = f"The answer is ({item['orig_answer_key']})."
        base = {"benchmark": "arc_challenge", "id": item["id"], "completion": reply}
        rows += [base | {"gold": item["answer"]}, base | {"gold": item["orig_answer_key"]}]
    _, verdicts, _, _ = graded(capsys, rows, tmp_path, "--data", str(data))
    assert {v["outcome"] for v in verdicts} == {"correct"}


def test_five_outcomes_and_both_readings(tmp_path, capsys):
    base = {"benchmark": "gsm8k", "gold": "1,234"}
    rows = [
        base | {"id": "a", "completion": "#### 1234"},
        base | {"id": "b", "completion": "It is 1234."},
        base | {"id": "c", "completion": "\\boxed{5}"},
        base | {"id": "d", "completion": "I cannot say."},
        base | {"id": "e", "completion": "1234", "finish_reason": "length"},
        base | {"id": "f", "completion": None},
        base | {"id": "g", "completion": "rate limited, retry in 1234 s", "error": "429"},
        base | {"id": "h", "completion": "<think>1234"},
        base | {"completion": None, "finish_reason": "stop"},
    ]
    code, verdicts, counts, _ = graded(capsys, rows, tmp_path)
    assert code == 0
    assert [v["outcome"] for v in verdicts] == [
        "correct", "correct", "wrong", "no_answer", "truncated", "missing", "missing", "no_answer",
        "no_answer",
    ]  # fmt: skip
    assert [v["answer"] for v in verdicts] == ["1234", "1234", "5"] + [None] * 6
    assert verdicts[-1]["id"] == 9  # without an id, the line's number
    assert counts["gsm8k"]["counts"] == {
        "correct": 2, "wrong": 1, "no_answer": 3, "truncated": 1, "missing": 2
    }  # fmt: skip
    assert counts["gsm8k"]["strict_counts"]["correct"] == 1
    accuracy = counts["gsm8k"]["accuracy"]  # missing left out
    assert accuracy == {
        "strict": pytest.approx(1 / 7, abs=1e-6), "flexible": pytest.approx(2 / 7, abs=1e-6)
    }  # fmt: skip
    assert "ids" not in counts["gsm8k"]  # no folder, nothing to find


def test_without_data_letters_are_limited_by_the_benchmark(tmp_path, capsys):
    rows = [
        {"benchmark": "mmlu_pro", "gold": "J", "completion": "The answer is (J)."},
        {"benchmark": "mmlu", "gold": "C", "completion": "The answer is (J)."},
        {"benchmark": "mmlu", "gold": 2, "completion": "The answer is C."},  # the hub's 0-based
        {"benchmark": "gpqa_diamond", "gold": "A", "completion": "ANSWER: A"},
        {"benchmark": "bbh_navigate", "gold": "No", "completion": "So the answer is No."},
        {"benchmark": "arc_challenge", "gold": "3", "completion": "The answer is 3."},
        {"benchmark": "aime2025", "gold": "33", "completion": "\\boxed{033}"},
        {"benchmark": "mine", "gold": "B", "choices": ["x", "y"], "completion": "y"},
        {"benchmark": "my_maths", "gold": "\\frac{1}{2}", "completion": "\\boxed{0.5}"},
        {"benchmark": "my_words", "gold": "Paris", "completion": "ANSWER: paris."},
    ]
    code, verdicts, _, _ = graded(capsys, rows, tmp_path)
    assert code == 0
    assert [v["outcome"] for v in verdicts] == ["correct", "no_answer"] + ["correct"] * 8


@pytest.mark.parametrize(
    "row, message",
    [
        ({"completion": "x"}, r":1: missing \['benchmark'\]"),
        ({"benchmark": "gsm8k", "completion": 5}, "'completion' to be a string or null, got int"),
        ({"benchmark": "gsm8k", "completion": "5"}, "expected 'gold'"),
        ({"benchmark": "mmlu", "completion": "A", "gold": "Z"}, "gold 'Z' is no option"),
        ({"benchmark": "humaneval", "id": "h", "completion": "x"}, "graded by its item's tests"),
    ],
)
def test_faults_of_a_file_are_named(row, message, tmp_path, capsys):
    code, _, _, said = graded(capsys, [row], tmp_path)
    assert code == 2
    assert re.search(message, said), said


def test_the_command_line(tmp_path):
    path = tmp_path / "o.jsonl"
    path.write_text('{"benchmark": "gsm8k", "completion": "#### 5", "gold": "5", "id": "q"}\n')
    run = subprocess.run(
        [sys.executable, "-m", "experiments.grade", str(path)], capture_output=True, text=True,
        cwd=pathlib.Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    first, last = map(json.loads, run.stdout.splitlines())
    assert first["id"] == "q" and first["outcome"] == "correct" and first["answer"] == "5"
    assert last["benchmark"] == "gsm8k" and last["counts"]["correct"] == 1
    missing = subprocess.run(
        [sys.executable, "-m", "experiments.grade", str(path), "--data", str(tmp_path / "none")],
        capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[2],
    )  # fmt: skip
    assert missing.returncode == 2 and "expected a folder" in missing.stderr
