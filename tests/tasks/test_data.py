import json
from pathlib import Path

import pytest

from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.choices import LETTERS
from gradejax.tasks.data import (
    gold_index,
    infer_kind,
    load_jsonl,
    load_task,
    resolve_path,
    twin_golds,
)
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.splits import check_disjoint

ROW = {"id": "a", "question": "?", "choices": ["x", "y", "z"], "answer": "B"}


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="mine.jsonl"):
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


def row(**changes):
    return {**ROW, **changes}


def test_items_and_extras(write):
    path = write(row(level=3), row(id=7, answer="z"), "")
    assert load_jsonl(path, family="f") == (
        Example("a", "?", ("x", "y", "z"), "B", "f", "mine.jsonl", meta={"level": 3}),
        Example("7", "?", ("x", "y", "z"), "C", "f", "mine.jsonl"),
    )


def test_line_separators_inside_strings_do_not_tear_lines(tmp_path):
    path = tmp_path / "u.jsonl"
    text = json.dumps(row(question="a\u2028b\u0085c"), ensure_ascii=False)
    path.write_text("\ufeff" + text + "\r\n", encoding="utf-8")
    assert load_jsonl(path)[0].question == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"id": "b", "question": "?", "cho', "expected one JSON object a line"),
        ('{"id": "b", "id": "c"}', r"repeated key\(s\) \['id'\]"),
        ("[1]", "expected a JSON object, got list"),
        ({"id": "b", "question": "?", "answer": "B"}, r"missing \['choices'\]; expected the keys"),
        (row(id=""), "'id' to be a non-empty string"),
        (row(id=True), "'id' to be a non-empty string, got True"),
        (row(id="b", question=None), "'question' to be a non-empty string, got None"),
        (row(id="b", answer=2), "'answer' to be a non-empty string, got 2"),
        (row(id="b", choices="xyz"), "'choices' to be null or a list"),
        (row(id="b", choices=["x", 2]), "'choices' to be null or a list"),
        (row(id="b", choices=["x"]), "list of 2 to 26 strings"),
        (row(id="b", answer="D"), "answer 'D' is not among the choices; expected a letter of ABC"),
        (row(id="b", answer="w"), "answer 'w' is not among the choices"),
        (row(id="b", choices=["x", "x"], answer="x"), "text of exactly one option"),
        (row(id="b", question="\ud800?"), r"'question' holds the lone surrogate U\+D800"),
        (row(id="\udc01"), r"'id' holds the lone surrogate U\+DC01"),
        (row(id="b", choices=["\udfff", "y", "z"]), r"'choices' holds the lone surrogate U\+DFFF"),
        (row(id="b", notes={"\ud900": [1]}), r"'notes' holds the lone surrogate U\+D900"),
        ('{"id": "b", "question": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (row(), "duplicate id 'a', first at line 1"),
    ],
)
def test_faults_name_file_and_line(write, line, message):
    path = write(ROW, line)
    with pytest.raises(ValueError, match=message) as error:
        load_jsonl(path)
    assert str(error.value).startswith(f"{path}:2: ")


def test_items_whose_right_option_stands_there_twice(write):
    path = write(ROW, row(id="b", choices=["x", "Y", "y "]), row(id="c", choices=["x", "y", "x"]),
                 row(id="d", choices=None, answer="x"))  # fmt: skip
    assert twin_golds(load_jsonl(path)) == ["b"]


def test_empty_file_and_wrong_encoding(write, tmp_path):
    with pytest.raises(ValueError, match="got an empty file"):
        load_jsonl(write("", ""))
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}\n')
    with pytest.raises(ValueError, match="expected UTF-8"):
        load_jsonl(tmp_path / "latin.jsonl")


def test_an_answer_that_is_a_letter_and_another_options_text(write):
    """ "C" for carbon: the rest of the file says whether answers are letters or texts."""
    atoms = row(id="b", choices=["C", "N", "O"], answer="C")
    assert load_jsonl(write(ROW, atoms))[1].answer == "C"
    assert load_jsonl(write(row(answer="y"), atoms))[1].answer == "A"
    with pytest.raises(ValueError, match=":1: answer 'C' is both a letter and the text"):
        load_jsonl(write(atoms))
    with pytest.raises(ValueError, match=":3: answer 'C' is both"):
        load_jsonl(write(ROW, row(id="c", answer="y"), atoms))


def test_gold_index_e05():
    rows = [("1234", "3"), ("ABCDE", "E"), ("ABC", "B")]
    found = [gold_index(list(labels), key) for labels, key in rows]
    assert found == [2, 4, 1]
    assert [LETTERS[i] for i in found] == ["C", "E", "B"]
    assert found != [-14, 4, 1]  # letter arithmetic: ord("3") - ord("A")
    with pytest.raises(ValueError, match="answer '1' is not among the labels"):
        gold_index(list("ABCD"), "1")


def test_kinds_are_inferred(write):
    def kind(*golds):
        return infer_kind([Example(str(i), "?", None, gold) for i, gold in enumerate(golds)])

    assert kind("1,234", "-7", "1/2") == "number"
    assert kind("1", "one") == "text"
    assert kind("0011", "0100") == "text"
    assert infer_kind(load_jsonl(write(ROW))) == "choice"


def test_a_file_of_both_kinds_is_refused_with_counts_and_ids(write):
    path = write(ROW, row(id="b", choices=None), row(id="c"), row(id="d"))
    said = "got 3 with .such as id 'a'. and 1 without .such as id 'b'.; split them into two files"
    with pytest.raises(ValueError, match=f"mine.jsonl: .*{said}"):
        load_task(path)
    with pytest.raises(ValueError, match=f"the items: .*{said}"):
        infer_kind(load_jsonl(path))


def test_an_items_own_family_wins_over_the_files_name(write):
    path = write(row(subject="law"), row(id="b", category=" art "), row(id="c", family=3),
                 row(id="d", family="x", subject="y"))  # fmt: skip
    assert [e.family for e in load_task(path).examples] == ["law", "art", "mine", "x"]


def test_load_task_by_path_and_override(write):
    path = write(row(choices=None, answer="12"))
    task, examples = load_task(path)
    assert task.name == "mine" and task.grade("12.0", examples[0])
    task, examples = load_task(path, kind="text")
    assert not task.grade("12.0", examples[0]) and task.grade("12", examples[0])
    with pytest.raises(ValueError, match="id 'a' does not fit answer kind 'choice'"):
        load_task(path, kind="choice")
    with pytest.raises(ValueError, match="unknown answer kind 'code'"):
        load_task(path, kind="code")


@pytest.mark.parametrize(
    "name, family, slot",
    [
        ("gsm8k.test", "gsm8k", "Give only the final numeric answer"),
        ("aime2025.test", "aime", "The answer is an integer"),
        ("aimless.test", "aimless", "Give only the final answer"),
    ],
)
def test_families_by_name(write, monkeypatch, tmp_path, name, family, slot):
    write(row(choices=None, answer="12"), name=f"{name}.jsonl")
    monkeypatch.setenv("GRADEJAX_DATA", str(tmp_path))
    task, examples = load_task(name)
    assert task.name == family == examples[0].family
    assert task.format_slot(examples[0]).startswith(slot)
    stem, split = name.split(".")
    assert load_task(stem, split=split).examples == examples


def test_aime_golds_must_be_integers(write):
    with pytest.raises(ValueError, match="does not fit answer kind 'integer'"):
        load_task(write(row(choices=None, answer="1000"), name="aime.jsonl"))


def test_names_are_resolved_in_the_data_folder(write, monkeypatch, tmp_path):
    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    with pytest.raises(ValueError, match="GRADEJAX_DATA names, which is not set"):
        resolve_path("gsm8k")
    write(ROW, name="there.test.jsonl")
    monkeypatch.setenv("GRADEJAX_DATA", str(tmp_path))
    assert resolve_path("there", "test") == tmp_path / "there.test.jsonl"
    with pytest.raises(ValueError, match=r"no benchmark 'gsm8k' in .*choose from \['there.test'\]"):
        resolve_path("gsm8k")
    with pytest.raises(ValueError, match="no such file"):
        resolve_path("elsewhere/gsm8k.jsonl")
    with pytest.raises(ValueError, match="a path names one file already"):
        resolve_path("mine.jsonl", "test")


# --- real files ----------------------------------------------------------------------------------

COUNTS = {
    "gsm8k.train": 7473, "gsm8k.test": 1319, "mmlu_pro.test": 12032, "mmlu_pro.validation": 70,
    "aime2025.test": 30, "arc_challenge.train": 1119, "arc_challenge.validation": 299,
    "arc_challenge.test": 1172, "bbh_navigate.test": 250, "mmlu_abstract_algebra.dev": 5,
    "mmlu_abstract_algebra.test": 100, "mmlu_college_physics.dev": 5,
    "mmlu_college_physics.test": 102, "mmlu_professional_medicine.dev": 5,
    "mmlu_professional_medicine.test": 272, "mmlu_redux.test": 5700, "humaneval.test": 164,
    "math500.test": 500, "scicode.validation": 15,
}  # fmt: skip
CODE = ("humaneval", "scicode")  # graded by running programs, not here


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_real_files_load_and_grade_their_golds(shared, monkeypatch, name):
    monkeypatch.setenv("GRADEJAX_DATA", str(Path(shared) / "data"))
    task, examples = load_task(name)
    assert len(examples) == COUNTS[name]
    code = name.startswith(CODE)
    for example, other in zip(examples, examples[1:] + examples[:1], strict=True):
        assert task.grade(example.answer, example), example.id
        if other.answer != example.answer:
            assert not task.grade(other.answer, example), (example.id, other.id)
        if not code:
            reply = f"Of 12 ways, A is one.\nANSWER: {example.answer}"
            assert task.judge(reply, "stop", example).outcome is Outcome.RIGHT, example.id


def test_all_real_benchmark_files_are_covered(shared):
    names = {path.name.removesuffix(".jsonl") for path in (Path(shared) / "data").glob("*.jsonl")}
    assert names - {"completions"} == set(COUNTS)


def test_arc_labels_of_real_rows_e05(shared):
    examples = load_jsonl(Path(shared) / "data" / "arc_challenge.test.jsonl")
    for e in examples:
        index = gold_index(e.meta["orig_labels"], e.meta["orig_answer_key"])
        assert LETTERS[index] == e.answer
    assert sum(e.meta["orig_labels"][0] == "1" for e in examples) == 22


@pytest.mark.parametrize(
    "family, splits",
    [
        ("gsm8k", ("train", "test")),
        ("mmlu_pro", ("validation", "test")),
        ("arc_challenge", ("train", "validation", "test")),
    ],
)
def test_real_splits_are_disjoint(shared, family, splits):
    folder = Path(shared) / "data"
    check_disjoint({s: load_jsonl(folder / f"{family}.{s}.jsonl") for s in splits})


def test_verdicts_of_real_completions(shared):
    """Published verdicts on real model outputs, all formats but code.

    All 77 agree (looked at one by one where the source's own reading was given), so one
    disagreement is already a change of behaviour.
    """
    folder = Path(shared) / "data"
    items = {}
    for path in folder.glob("*.test.jsonl"):
        if path.name.startswith(("gsm8k", "mmlu", "arc", "bbh")):
            task, examples = load_task(path)
            items.update({e.id: (task, e) for e in examples})
    math = make_task("math", "number", FORMATS["open"])
    checked, disagreements, readings = 0, [], []
    for line in (folder / "completions.jsonl").read_text(encoding="utf-8").split("\n"):
        entry = json.loads(line) if line else {"benchmark": "humaneval"}
        if entry["benchmark"] == "humaneval":
            continue
        id = str(entry["id"])
        open_item = (math, Example(id, "?", None, entry["gold"] or ""))
        task, example = open_item if entry["benchmark"] == "math" else items[id]
        judged = task.judge(entry["completion"], "stop", example)
        checked += 1
        if (judged.outcome is Outcome.RIGHT) != entry["correct"]:
            disagreements.append((id, judged))
        letters = entry["benchmark"] in ("mmlu_pro", "mmlu", "arc_challenge")
        if letters and judged.answer != entry["recorded_pred"]:
            readings.append((id, judged, entry["recorded_pred"]))
    print(f"verdicts: {checked - len(disagreements)} of {checked} agree; readings off: {readings}")
    assert checked == 77
    assert disagreements == []
    assert readings == []


def test_an_empty_folder_offers_no_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADEJAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="no benchmark 'gsm8k' in .*; there is no .jsonl file"):
        resolve_path("gsm8k")
