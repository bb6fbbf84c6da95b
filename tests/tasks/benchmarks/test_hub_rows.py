"""Rows in each hub's own columns become the same examples as the common JSONL format."""

import json

import pytest

from gradejax.tasks.benchmarks import BENCHMARKS, NotAtHand, hub, load, spec_named, task_named
from gradejax.tasks.benchmarks.convert import to_examples
from gradejax.tasks.benchmarks.mmlu_redux import corrected_letter
from gradejax.tasks.benchmarks.spec import Place

GPQA_ROW = {
    "Question": " Which made-up particle is heaviest? ", "Correct Answer": "the first\n",
    "Incorrect Answer 1": "second", "Incorrect Answer 2": "third", "Incorrect Answer 3": "fourth",
    "Record ID": "recMADEUP1", "Subdomain": "Made-up Physics", "High-level domain": "Physics",
}  # fmt: skip
MATH_ROW = {
    "problem": "What is $1+1$?", "level": "Level 1", "type": "Algebra",
    "solution": r"First \boxed{1}, then \boxed{\frac{4}{2}}.",
}  # fmt: skip
PRO_ROW = {
    "question_id": 12, "question": "?", "options": ["x", "y", "z", "N/A", "N/A"], "answer": "B",
    "answer_index": 1, "cot_content": "", "category": "math", "src": "s",
}  # fmt: skip


def one(name, row, subset="", split="test", index=0):
    spec = spec_named(name)
    place = Place(spec.check_subset(subset), split, index)
    examples, notes = to_examples(spec, [(row, place, "here")])
    return examples[0], notes


def as_hub(name, row, index):
    """A JSONL row of the shared data in the hub's columns, by their documentation."""
    if name == "gsm8k":
        return {"question": row["question"], "answer": row["solution"]}
    if name == "aime2025":
        number = row["number"] + (15 if row["exam"].endswith("II") else 0)
        return {"problem_idx": number, "problem": row["question"], "answer": int(row["answer"])}
    if name == "arc_challenge":
        choices = {"text": row["choices"], "label": row["orig_labels"]}
        return {"id": row["id"], "question": row["question"], "choices": choices,
                "answerKey": row["orig_answer_key"]}  # fmt: skip
    if name == "bbh_navigate":
        return {"input": row["question"], "target": row["answer"]}
    if name == "math500":
        kept = ("solution", "answer", "subject", "level")
        return {"problem": row["question"], "unique_id": row["id"]} | {k: row[k] for k in kept}
    if name == "humaneval":
        return {"task_id": row["id"], "prompt": row["question"], "canonical_solution":
                row["answer"], "test": row["test"], "entry_point": row["entry_point"]}  # fmt: skip
    if name == "mmlu_pro":
        return {"question_id": row["id"], "question": row["question"], "options": row["choices"],
                "answer": row["answer"], "answer_index": "ABCDEFGHIJ".index(row["answer"]),
                "cot_content": row.get("cot_content", ""), "category": row["category"],
                "src": row["src"]}  # fmt: skip
    index = "ABCD".index(row["answer"])
    kept = {k: row.get(k) for k in ("question", "choices", "subject")} | {"answer": index}
    if name.startswith("mmlu_redux"):
        kept |= {k: row[k] for k in ("error_type", "correct_answer", "source")}
    return kept


@pytest.mark.parametrize(
    "name, split, subset",
    [
        ("gsm8k", "train", ""), ("gsm8k", "test", ""), ("mmlu_pro", "test", ""),
        ("mmlu_pro", "validation", ""), ("aime2025", "test", ""), ("arc_challenge", "train", ""),
        ("arc_challenge", "validation", ""), ("arc_challenge", "test", ""),
        ("bbh_navigate", "test", ""), ("mmlu", "dev", "abstract_algebra"),
        ("mmlu", "test", "college_physics"), ("mmlu", "test", "professional_medicine"),
        ("mmlu_redux", "test", ""), ("mmlu_redux_original", "test", ""), ("math500", "test", ""),
        ("humaneval", "test", ""),
    ],
)  # fmt: skip
def test_hub_and_folder_give_the_same_examples(shared, name, split, subset):
    spec, folder = spec_named(name), f"{shared}/data"
    stem = f"{spec.file}_{subset}" if subset else spec.file
    with open(f"{folder}/{stem}.{split}.jsonl", encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    counters = {}
    hub_rows = []
    for row in rows:
        part = row["subject"] if name.startswith("mmlu_redux") else spec.check_subset(subset)
        index = counters[part] = counters.get(part, -1) + 1
        hub_rows.append((as_hub(name, row, index), Place(part, split, index), f"row {index}"))
    from_hub, hub_notes = to_examples(spec, hub_rows)
    loaded = load(name, split, subset=subset, folder=folder)
    assert len(from_hub) == len(loaded.examples) > 0
    extra = {"aime2025": {"question_alt"}}.get(name, set())  # of that file alone
    for a, b in zip(from_hub, loaded.examples, strict=True):
        assert a == b or (a.id, a.question, a.choices, a.answer, a.source) == (
            b.id, b.question, b.choices, b.answer, b.source
        )  # fmt: skip
        assert dict(a.meta) == {k: v for k, v in b.meta.items() if k not in extra}
    assert set(hub_notes) <= set(loaded.notes)


def test_gpqa_is_shuffled_by_the_records_id_and_keeps_the_mapping():
    example, _ = one("gpqa", GPQA_ROW, "gpqa_diamond")
    order = example.meta["order"]
    options = ["the first", "second", "third", "fourth"]
    assert sorted(order) == [0, 1, 2, 3]
    assert list(example.choices) == [options[i] for i in order]
    assert example.choices["ABCD".index(example.answer)] == "the first"
    golds = [one("gpqa", GPQA_ROW | {"Record ID": f"rec{i}"})[0].answer for i in range(400)]
    # unshuffled, the gold would always be A; 60 of 400 in one place is 4.6 deviations off
    assert all(60 < golds.count(letter) < 140 for letter in "ABCD")
    assert example == one("gpqa", GPQA_ROW, "gpqa_diamond")[0]


def test_errors_of_gpqa_rows_quote_no_text():
    row = {k: v for k, v in GPQA_ROW.items() if k != "Correct Answer"}
    with pytest.raises(ValueError, match="here: expected the column 'Correct Answer'") as error:
        one("gpqa", row)
    assert "heaviest" not in str(error.value) and "second" not in str(error.value)
    assert "heaviest" not in str(error.value.__cause__)


def test_math_takes_the_last_box():
    example, _ = one("math", MATH_ROW, "algebra", "train", 4)
    assert (example.id, example.answer) == ("math-algebra-train-4", r"\frac{4}{2}")
    assert (example.meta["level"], example.meta["subject"]) == (1, "Algebra")
    # the fault: the first box, or the text up to the first brace
    assert example.answer not in ("1", r"\frac{4")
    assert one("math", MATH_ROW | {"level": "Level ?"}, "algebra")[0].meta["level"] is None
    with pytest.raises(ValueError, match=r"a solution with a \\boxed\{\} answer"):
        one("math", MATH_ROW | {"solution": "2"}, "algebra")


def test_math500_golds_are_the_last_boxes_of_their_solutions(shared):
    from gradejax.tasks.benchmarks.maths import gold_of

    examples = load("math500", folder=f"{shared}/data").examples
    assert [e.id for e in examples if gold_of(e.meta["solution"]) != e.answer] == []


def test_mmlu_pro_fillers_go_and_a_contradiction_is_said():
    example, notes = one("mmlu_pro", PRO_ROW)
    assert example.choices == ("x", "y", "z") and example.id == "12" and not notes
    example, notes = one("mmlu_pro", PRO_ROW | {"answer_index": 0})
    assert example.answer == "B" and notes == ("1 item(s) contradict themselves: 12",)
    with pytest.raises(ValueError, match="expected the letter of one of 5 options"):
        one("mmlu_pro", PRO_ROW | {"answer": "F"})


@pytest.mark.parametrize(
    "labels, key, letter, by_arithmetic",
    [
        (["1", "2", "3", "4"], "3", "C", -14), (list("ABCDE"), "E", "E", 4),
        (list("ABC"), "B", "B", 1), (list("ABCD"), "1", None, -16),
    ],
)  # fmt: skip
def test_arc_golds_are_places_among_the_rows_own_labels(labels, key, letter, by_arithmetic):
    row = {"id": "q", "question": "?", "answerKey": key}
    row["choices"] = {"label": labels, "text": [f"t{x}" for x in labels]}
    assert ord(key) - ord("A") == by_arithmetic  # fault E05
    if letter is None:
        with pytest.raises(ValueError, match="'1' is not among the labels"):
            one("arc_challenge", row)
        return
    assert one("arc_challenge", row)[0].answer == letter


@pytest.mark.parametrize(
    "annotation, letter",
    [
        ("2", "C"), ("B", "B"), ("13.20%", "B"), (None, None), ("", None), ("1, 3", None),
        ("B,C", None), ("6", None), ("depends on interpretation", None), ("Ok", None),
    ],
)  # fmt: skip
def test_redux_annotations(annotation, letter):
    assert corrected_letter(annotation, ["12%", "13.20%", "14%", "15%"]) == letter


def test_redux_labels(shared):
    folder = f"{shared}/data"
    original = {e.id: e for e in load("mmlu_redux_original", folder=folder).examples}
    loaded = load("mmlu_redux", folder=folder)
    corrected = {e.id: e for e in loaded.examples}
    assert (len(original), len(corrected)) == (5700, 5429)
    changed = [i for i, e in corrected.items() if e.answer != original[i].answer]
    assert len(changed) == 101
    assert all(corrected[i].meta["error_type"] == "wrong_groundtruth" for i in changed)
    # ok, but annotated with another option; wrong, but annotated with the original one
    gone = {"mmlu_redux-astronomy-49", "mmlu_redux-global_facts-0", "mmlu_redux-global_facts-13"}
    assert not gone & set(corrected)
    assert loaded.notes[0].startswith("271 of 5700 items left out: 132 bad_question_clarity, ")
    # the annotator's own letters, read again from the free text
    for e in original.values():
        found = corrected_letter(e.meta["correct_answer"], list(e.choices))
        assert found == e.meta["correct_letter"], e.id
    assert len(load("mmlu_redux_original", subset="virology", folder=folder).examples) == 100


def test_navigate_lists_its_options_once(shared):
    from gradejax.tasks.prompts import question_text

    example = load("bbh_navigate", folder=f"{shared}/data").examples[0]
    assert question_text(example).count("Yes") == 1 and example.choices == ("Yes", "No")
    assert example.answer == "B"


def test_aime_is_one_exam_after_the_other():
    row = {"problem_idx": 16, "problem": "?", "answer": 33}
    example, _ = one("aime2025", row)
    assert (example.id, example.answer) == ("aime2025-II-1", "33")
    with pytest.raises(ValueError, match=r"problem_idx in 1\.\.30, got 31"):
        one("aime2025", row | {"problem_idx": 31})


@pytest.mark.parametrize(
    "row, message",
    [
        ({"question": "?"}, "expected the column 'answer', got"),
        ({"question": 3, "answer": "#### 1"}, "expected 'question' to be str, got int"),
        ({"question": "?", "answer": "no mark"}, "expected an answer after '#### '"),
        ({"question": " ", "answer": "#### 1"}, "expected 'question' to be a text"),
        ({"id": "a", "question": "?", "choices": ["x", "y"], "answer": "1"}, "has open answers"),
    ],
)
def test_rows_that_do_not_fit(row, message):
    with pytest.raises(ValueError, match=f"here: .*{message}"):
        one("gsm8k", row, split="train")


def test_rows_come_through_datasets_at_the_pinned_revision(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(hub_id, subset, **options):
        asked.append((hub_id, subset, options))
        rows = [{"question": f"{subset}?", "choices": ["a", "b"], "answer": 1}] * 2
        return datasets.Dataset.from_list(rows)

    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = load("mmlu", "dev", subset="virology")
    assert [e.id for e in loaded.examples] == ["mmlu-virology-dev-0", "mmlu-virology-dev-1"]
    revision = spec_named("mmlu").revision
    assert asked == [("cais/mmlu", "virology", {"split": "dev", "revision": revision})]
    assert loaded.notes == ("2 rows, published are 5",)
    assert loaded.origin == f"cais/mmlu@{revision}"
    assert len(load("mmlu", "dev").examples) == 114 and len(asked) == 58  # all subjects


def test_a_hub_that_gives_nothing_is_said(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def gone(*args, **kwargs):
        raise ConnectionError("Dataset 'x' is a gated dataset on the Hub.\nlong story")

    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", gone)
    with pytest.raises(NotAtHand, match=r"GRADEJAX_DATA is not set, and .*gated.*hf auth login"):
        load("gpqa")
    monkeypatch.setattr(hub, "rows_of", lambda *a: pytest.fail("the hub was asked"))
    with pytest.raises(NotAtHand, match="gpqa.test: no folder was given"):
        load("gpqa", hub=False)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_whole(name):
    spec, task = spec_named(name), task_named(name)
    assert task.name == name
    for split in spec.splits:
        assert any(s == split for _, s in spec.counts), (name, split)
    assert spec.exemplars is None or spec.exemplars in spec.splits
    assert spec.exemplars != "test"
    # pinned: a commit, or the converted files of a repository that holds a script
    assert len(spec.revision) == 40 or spec.revision == "refs/convert/parquet"
