"""`experiments.grade --data`: ids that are not there, golds that contradict the item's own."""

import json

import pytest

from experiments.grade import main
from experiments.grade_items import Items

GSM = [{"id": f"gsm-{i}", "question": "?", "choices": None, "answer": str(i)} for i in range(4)]
CHOICE = [{"id": 7, "question": "?", "choices": ["red", "green", "blue"], "answer": "B"}]


@pytest.fixture
def graded(tmp_path, capsys):
    """(exit code, verdicts, last lines by benchmark, stderr) of rows against files of items."""

    def run(rows, **files):
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for name, items in files.items():
            path = folder / f"{name}.test.jsonl"
            path.write_text("".join(json.dumps(item) + "\n" for item in items))
        outputs = tmp_path / "outputs.jsonl"
        outputs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main([str(outputs), "--data", str(folder)])
        said = capsys.readouterr()
        lines = [json.loads(line) for line in said.out.splitlines()]
        ends = {x["benchmark"]: x for x in lines if "id" not in x}
        return code, [x for x in lines if "id" in x], ends, said.err

    return run


def row(item_id, completion, gold=None, benchmark="gsm8k", **more):
    return {"benchmark": benchmark, "id": item_id, "completion": completion, "gold": gold} | more


def test_a_file_that_holds_none_of_the_ids_is_an_error(graded):
    rows = [row(f"other-{i}", f"ANSWER: {i}", str(i)) for i in range(3)]
    code, verdicts, ends, said = graded(rows, gsm8k=GSM)
    assert code == 2 and not verdicts and not ends
    assert "gsm8k.test.jsonl" in said and "none of the 3 ids" in said
    assert "'other-0', 'other-1'" in said and "'gsm-0', 'gsm-1'" in said


def test_ids_that_are_not_there_are_counted_and_said(graded):
    rows = [row("gsm-1", "ANSWER: 1", "1"), row("nowhere", "ANSWER: 5", "5")]
    code, verdicts, ends, said = graded(rows, gsm8k=GSM)
    assert code == 0 and [v["outcome"] for v in verdicts] == ["correct", "correct"]
    assert "item" not in verdicts[0] and verdicts[1]["item"] == "not_found"
    assert ends["gsm8k"]["ids"] == {"found": 1, "not_found": 1, "contradicting": 0}
    assert "1 of 2 ids are not in" in said and "nowhere" in said


def test_of_two_golds_the_items_own_decides(graded):
    rows = [
        row("gsm-1", "ANSWER: 1", "2"),  # contradicts
        row("gsm-2", "ANSWER: 2", "2.0"),  # the same number
        row("gsm-3", "ANSWER: 3", "work #### 3"),
        row("gsm-0", "ANSWER: 0"),
        row(7, "The answer is (B).", "A", "mine"),
        row(7, "The answer is (B).", "Z", "mine"),  # no option at all
        row(7, "The answer is (B).", "green", "mine"),
    ]
    code, verdicts, ends, said = graded(rows, gsm8k=GSM, mine=CHOICE)
    assert code == 0 and {v["outcome"] for v in verdicts} == {"correct"}
    assert [v.get("item") == "contradicting" for v in verdicts] == [
        True, False, False, False, True, True, False
    ]  # fmt: skip
    assert ends["gsm8k"]["ids"] == {"found": 4, "not_found": 0, "contradicting": 1}
    assert ends["mine"]["ids"] == {"found": 3, "not_found": 0, "contradicting": 2}
    assert "the gold of 1 of 4 lines contradicts the item's own" in said
    assert "the item's decides: gsm-1" in said


def test_options_in_another_order_are_read_by_their_texts(graded):
    shown = ["green", "blue", "red"]
    rows = [
        row(7, "ANSWER: A", "A", "mine", choices=shown),
        row(7, "ANSWER: A", None, "mine", choices=shown),
        row(7, "ANSWER: B", "B", "mine", choices=shown),
        row(7, "ANSWER: A", "A", "mine", choices=["green", "pink", "red"]),  # another question
    ]
    code, verdicts, ends, _ = graded(rows, mine=CHOICE)
    assert code == 0
    assert [v["outcome"] for v in verdicts] == ["correct", "correct", "wrong", "wrong"]
    assert ends["mine"]["ids"]["contradicting"] == 2


def test_a_line_without_an_id_finds_no_item_by_its_number(graded):
    items = [GSM[0] | {"id": "2", "answer": "9"}, GSM[1] | {"id": "q"}]
    rows = [row("q", "ANSWER: 1"), {"benchmark": "gsm8k", "completion": "ANSWER: 5", "gold": "5"}]
    code, verdicts, ends, said = graded(rows, gsm8k=items)
    assert code == 0 and [v["outcome"] for v in verdicts] == ["correct", "correct"]
    assert ends["gsm8k"]["ids"] == {"found": 1, "not_found": 0, "contradicting": 0, "no_id": 1}
    assert "1 of 2 lines have no id" in said


def test_another_benchmarks_file_is_not_looked_into(graded, tmp_path):
    """mmlu's and mmlu_pro's ids may be the same numbers."""
    pro = [CHOICE[0] | {"id": i, "answer": "C"} for i in range(3)]
    rows = [row(1, "The answer is (A).", "A", "mmlu"), row(1, "ANSWER: C", "C", "MMLU-Pro")]
    code, verdicts, ends, said = graded(rows, mmlu_pro=pro)
    assert code == 0 and {v["outcome"] for v in verdicts} == {"correct"}
    assert ends["mmlu"]["ids"]["not_found"] == 1 and ends["MMLU-Pro"]["ids"]["found"] == 1
    assert "which has no file of it" in said
    names = [p.name for p in Items(tmp_path / "data").files("mmlu_pro")]
    assert names == ["mmlu_pro.test.jsonl"]


def test_a_corrected_label_contradicts_nothing(graded):
    item = CHOICE[0] | {"id": "r", "error_type": "wrong_groundtruth", "correct_letter": "C"}
    rows = [
        row("r", "ANSWER: C", "C", "mmlu_redux"),
        row("r", "ANSWER: B", "B", "mmlu_redux"),  # MMLU's own label
        row("r", "ANSWER: C", None, "mmlu_redux"),
        row("r", "ANSWER: B", None, "mmlu_redux_original"),
        row("r", "ANSWER: C", "A", "mmlu_redux"),
    ]
    code, verdicts, ends, _ = graded(rows, mmlu_redux=[item])
    assert code == 0 and {v["outcome"] for v in verdicts} == {"correct"}
    assert ends["mmlu_redux"]["ids"]["contradicting"] == 1
