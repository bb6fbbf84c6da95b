"""Settings are refused before anything is asked, by key, with what was got and what is allowed."""

import json
import pathlib

import pytest

from experiments.build import build, with_questions
from experiments.config import ConfigError, load, to_dict

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "experiments/configs/grade_tiny.py"
FEW = (("task.train_questions", "12"), ("task.heldout_questions", "12"), ("grade.anchors", "4"))


def built(*overrides):
    return build(to_dict(load(CONFIG, (*FEW, *overrides))))


@pytest.mark.parametrize(
    ("key", "got", "allowed"),
    [
        ("evaluation.batch_size", "0", "at least 1"),
        ("evaluation.replicates", "0", "at least 1"),
        ("store.batch_size", "0", "at least 1"),
        ("store.on_error", "ignore", "one of raise, missing"),
        ("store.on_long", "cut", "one of error, missing"),
        ("store.path", " ", "a folder"),
        ("budget.money", "-1.0", "at least 0"),
        ("seeds", "-1", "0 to 4294967295"),
        ("seeds", "4294967296", "0 to 4294967295"),
        ("train.devices", "99", "at most 4"),
        ("train.steps", "0", "at least 1"),
        ("grade.fixed_k", "100", "at most 6, the agents of the pool"),
        ("grade.anchors", "13", "at most 12, the training questions"),
        ("grade.learning_rate", "inf", "finite"),
        ("grade.kl_weight", "inf", "finite"),
        ("grade.std_floor", "inf", "finite"),
        ("grade.log_prob_floor", "-inf", "finite"),
        ("pool.agents.A2.sampling.temperature", "inf", "1e+30"),
        ("pool.agents.A2.sampling.temperature", "-1.0", ">= 0"),
        ("pool.agents.A2.max_new_tokens", "0", "at least 1"),
        ("task.train_questions", "-5", "1 to 20000"),
        ("task.train_questions", "1000000", "1 to 20000"),
        ("task.heldout_questions", "0", "1 to 20000"),
    ],
)
def test_settings_out_of_range_are_named(key, got, allowed):
    with pytest.raises(ConfigError) as error:
        built((key, got))
    said = str(error.value)
    for word in (key.rsplit(".", 1)[-1], got.strip(), allowed):
        assert word in said, said
    assert f"config.{key.split('.')[0]}" in said


def test_an_infinite_clip_turns_it_off():
    assert built(("grade.clip", "inf")).grade.clip == float("inf")


def files(folder, train, heldout):
    for name, rows in (("train", train), ("heldout", heldout)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return [("task.name", "mine"), ("grade.anchors", "1"), ("task.train_questions", "0"),
            ("task.train_file", f"{folder}/train.jsonl"),
            ("task.heldout_file", f"{folder}/heldout.jsonl")]  # fmt: skip


def row(i, question=None, **changes):
    plain = {"id": str(i), "question": question or f"{i}?", "choices": None, "answer": f"{i}"}
    return plain | changes


@pytest.mark.parametrize(
    ("train", "heldout", "said"),
    [
        ([row(1, "same?"), row(2, "Same?")], [row(9)], "config.task.train_file: all 2 questions"),
        ([row(1)], [row(8, "a?"), row(9, "a?")], "config.task.heldout_file: all 2 questions"),
        ([row(1), row(2, answer="")], [row(9)], "config.task.train_file: .*train.jsonl:2: "),
        ([row(1)], [row(1)], "config.task: the training and the held-out questions overlap"),
        ([row(1)], [row(9, answer="x")], "config.task.heldout_file of text; set config.task.kind"),
        ([row(1, choices=["x", "x"], answer="A")], [row(9)], "right option stands among .*: 1"),
    ],
)
def test_files_are_refused_by_the_setting_that_names_them(tmp_path, train, heldout, said):
    with pytest.raises(ConfigError, match=said):
        built(*files(tmp_path, train, heldout))


def test_the_setting_of_a_missing_file_or_wrong_kind_is_named(tmp_path):
    settings = files(tmp_path, [row(1), row(2)], [row(9)])
    with pytest.raises(ConfigError, match="config.task.train_file: no such file: none.jsonl"):
        built(*settings, ("task.train_file", "none.jsonl"))
    with pytest.raises(ConfigError, match="config.task.kind must be one of choice, .*'odd'"):
        built(*settings, ("task.kind", "odd"))
    with pytest.raises(ConfigError, match="config.task: unknown format 'odd'"):
        built(*settings, ("task.format", "odd"))
    assert len(built(*settings).train_questions) == 2


def test_one_file_is_checked_as_two_are(tmp_path):
    (tmp_path / "mine.jsonl").write_text("")
    settings = [("task.name", "jsonl"), ("task.path", f"{tmp_path}/mine.jsonl")]
    for rows, said in (
        ([row(1, "same?"), row(2, "Same?")], "config.task.path: all 2 questions"),
        ([row(1, choices=["x", "x"], answer="A"), row(2, choices=["y", "y"], answer="B")],
         "config.task.path: in all 2 questions .* right option stands among .*: 2 .1, 2."),
        ([row(1), row(2, choices=["x", "y"], answer="A")],
         "config.task.path: .*mine.jsonl: expected all items .* 1 with .* '2'.* 1 without .* '1'"),
        ([row(1), row(2, answer="")], "config.task.path: .*mine.jsonl:2: "),
    ):  # fmt: skip
        (tmp_path / "mine.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        with pytest.raises(ConfigError, match=said):
            built(*settings)


def test_items_with_two_right_options_are_left_out_and_counted(tmp_path):
    rows = [row(i, choices=["x", "y"], answer="A") for i in range(12)]
    rows[3]["choices"] = rows[8]["choices"] = ["x", " X"]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run = built(("task.name", "jsonl"), ("task.path", f"{tmp_path}/mine.jsonl"))
    kept = {e.id.split("/")[1] for e in (*run.train_questions, *run.heldout_questions)}
    assert kept == {str(i) for i in range(12)} - {"3", "8"}
    assert any("of 12 questions these are left out" in n and "2 (3, 8)" in n for n in run.notes)
    run = built(*files(tmp_path, rows[:6], rows[6:]))
    assert len(run.train_questions) == len(run.heldout_questions) == 5
    assert sum("left out" in note for note in run.notes) == 2


def test_families_are_the_items_own_or_the_tasks_name_never_two_files_names(tmp_path):
    run = built(*files(tmp_path, [row(1), row(2)], [row(9)]))
    assert run.families == (run.task_entry["name"],)
    run = built(*files(tmp_path, [row(1, subject="a"), row(2, subject="b")], [row(9, subject="b")]))
    assert run.families == ("a", "b")


def test_few_questions_of_one_file_will_do_for_anchors_but_not_for_fixed_k(tmp_path):
    rows = [row(i) for i in range(12)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    settings = [("task.name", "jsonl"), ("task.path", f"{tmp_path}/mine.jsonl")]
    run = with_questions(built(*settings, ("grade.anchors", "64")), lambda example: True)
    assert run.grade.anchors == len(run.train_questions) < 12
    with pytest.raises(ConfigError, match="config.grade.fixed_k must be at most 6"):
        built(*settings, ("grade.fixed_k", "100"))
