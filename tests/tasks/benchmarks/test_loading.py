"""Folders, splits, counts: what is found, what is cut, and what is said of it."""

import json
import logging

import pytest

from gradejax.tasks.benchmarks import BENCHMARKS, NotAtHand, load, of_file, spec_named, task_named
from gradejax.tasks.splits import check_disjoint, item_key, split_by_id, without_copies

# (name, split, subset, published, found in the shared data after what the benchmark leaves out)
COUNTS = [
    ("gsm8k", "train", "", 7473, 7473), ("gsm8k", "test", "", 1319, 1319),
    ("mmlu_pro", "test", "", 12032, 12032), ("mmlu_pro", "validation", "", 70, 70),
    ("aime2025", "test", "", 30, 30), ("arc_challenge", "train", "", 1119, 1119),
    ("arc_challenge", "validation", "", 299, 299), ("arc_challenge", "test", "", 1172, 1172),
    ("bbh_navigate", "test", "", 250, 250), ("mmlu", "test", "abstract_algebra", 100, 100),
    ("mmlu", "test", "college_physics", 102, 102),
    ("mmlu", "test", "professional_medicine", 272, 272), ("mmlu", "dev", "college_physics", 5, 5),
    ("mmlu_redux", "test", "", 5700, 5429), ("mmlu_redux_original", "test", "", 5700, 5700),
    ("math500", "test", "", 500, 500), ("humaneval", "test", "", 164, 164),
]  # fmt: skip
TOTALS = {
    ("mmlu", "dev"): 285, ("mmlu", "validation"): 1531, ("mmlu", "test"): 14042,
    ("math", "train"): 7500, ("math", "test"): 5000,
}  # fmt: skip


@pytest.fixture
def gsm8k(tmp_path, monkeypatch):
    """A folder with a small training set in the hub's own columns."""
    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    rows = [{"question": f"What is {i} + 1?", "answer": f"so #### {i + 1}"} for i in range(200)]
    path = tmp_path / "gsm8k.train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("name, split, subset, published, found", COUNTS)
def test_published_counts(shared, name, split, subset, published, found):
    spec = spec_named(name)
    assert spec.counts[spec.check_subset(subset), split] == published
    loaded = load(name, split, subset=subset, folder=f"{shared}/data")
    assert len(loaded.examples) == found
    assert not any("published" in note for note in loaded.notes)


@pytest.mark.parametrize("name, split", TOTALS)
def test_subsets_add_up_to_the_published_totals(name, split):
    counts = {k: n for k, n in spec_named(name).counts.items() if k[1] == split}
    whole = counts.pop(("all", split), None)
    assert sum(counts.values()) == TOTALS[name, split]
    assert whole in (None, TOTALS[name, split])


@pytest.mark.parametrize("name, split, subset, published, found", COUNTS)
def test_golds_are_read_as_their_own_answers(shared, name, split, subset, published, found):
    task = task_named(name)
    if spec_named(name).kind in ("code", "math"):
        return  # the sandbox's and the mathematics' own tests run all of these
    examples = load(name, split, subset=subset, folder=f"{shared}/data").examples
    wrong = [
        e.id for e in examples
        if task.judge(f"ANSWER: {e.answer}", "stop", e).outcome.value != "correct"
    ]  # fmt: skip
    assert wrong == []


def test_a_difference_from_the_published_count_is_said(gsm8k, caplog):
    with caplog.at_level(logging.WARNING):
        loaded = load("gsm8k", "train", folder=gsm8k)
    assert loaded.notes == ("200 rows, published are 7473",)
    assert "gsm8k.train: 200 rows, published are 7473" in caplog.text
    assert len(load("gsm8k", "train", folder=gsm8k, limit=3).examples) == 3


def test_golds_that_cannot_be_read_are_said(gsm8k):
    row = {"id": "odd", "question": "?", "choices": None, "answer": "a dozen"}
    with open(gsm8k / "gsm8k.train.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    notes = load("gsm8k", "train", folder=gsm8k).notes
    assert "1 golds are not read as their own answers: odd" in notes


def test_the_development_split_is_cut_from_train_by_id(gsm8k):
    dev = load("gsm8k", "dev", folder=gsm8k).examples
    fit = load("gsm8k", "fit", folder=gsm8k).examples
    train = load("gsm8k", "train", folder=gsm8k).examples
    assert {e.id for e in dev} | {e.id for e in fit} == {e.id for e in train}
    assert 5 < len(dev) < 40 and len(dev) + len(fit) == len(train)
    check_disjoint({"dev": dev, "fit": fit})
    # another file of the same items, fewer of them, is cut the same way
    lines = (gsm8k / "gsm8k.train.jsonl").read_text().splitlines(keepends=True)
    (gsm8k / "gsm8k.train.jsonl").write_text("".join(lines[:100]))
    fewer = {e.id for e in load("gsm8k", "dev", folder=gsm8k).examples}
    assert fewer == {e.id for e in dev if int(e.id.rsplit("-", 1)[1]) < 100}


@pytest.mark.parametrize("name", ["gpqa", "aime2025", "math500", "humaneval", "mmlu_redux"])
def test_no_development_split_is_cut_from_a_test_set(name, shared):
    for split in ("dev", "fit", "train"):
        with pytest.raises(ValueError, match=f"{name} has no split '{split}'; choose from test"):
            load(name, split, folder=f"{shared}/data")


def test_copies_stay_on_one_side():
    from gradejax.tasks.base import Example

    items = [Example(f"i{n}", f"Question {n % 20}?", None, "1") for n in range(60)]
    for salt in "abc":
        chosen, rest = split_by_id(items, fraction=0.5, salt=salt)
        assert chosen and rest
        check_disjoint({"a": chosen, "b": rest})
    assert split_by_id(items, fraction=0.0) == ((), tuple(items))
    with pytest.raises(ValueError, match=r"fraction in \[0, 1\], got 2"):
        split_by_id(items, fraction=2)
    kept, copies = without_copies(items, of=[Example("x", "question 3", None, "1")])
    assert len(kept) == 19 and len(copies) == 41
    assert item_key(items[3]) not in {item_key(e) for e in kept}


def test_subjects_of_one_file_and_of_many(tmp_path):
    def row(subject, i):
        return {"id": f"{subject}-{i}", "question": f"{subject} {i}?", "choices": None,
                "answer": "1", "subject": subject}  # fmt: skip

    both = [row("Algebra", 0), row("Counting & Probability", 1)]
    (tmp_path / "math.test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in both))
    loaded = load("math", "test", subset="counting_and_probability", folder=tmp_path)
    assert [e.id for e in loaded.examples] == ["Counting & Probability-1"]
    assert loaded.notes == ("1 rows, published are 474",)
    many = tmp_path / "many"
    many.mkdir()
    (many / "math_algebra.test.jsonl").write_text(json.dumps(both[0]) + "\n")
    loaded = load("math", "test", folder=many)
    assert loaded.notes == (
        "1 rows, published are 5000",
        "6 subsets are not in the folder: math_counting_and_probability.test.jsonl, "
        "math_geometry.test.jsonl, math_intermediate_algebra.test.jsonl and 3 more",
    )


def test_what_is_not_at_hand_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("GRADEJAX_DATA", raising=False)
    with pytest.raises(NotAtHand, match=r"gsm8k\.test: gsm8k\.test\.jsonl or .* is not in "):
        load("gsm8k", folder=tmp_path)
    with pytest.raises(NotAtHand, match="the folder given is 'nowhere', which is no folder"):
        load("gsm8k", folder="nowhere")
    with pytest.raises(NotAtHand, match="no folder was given and GRADEJAX_DATA is not set"):
        load("gsm8k", hub=False)
    monkeypatch.setenv("GRADEJAX_DATA", str(tmp_path))
    with pytest.raises(NotAtHand, match="gpqa_main.test.jsonl is not in"):
        load("gpqa", subset="gpqa_main", hub=False)


def test_wrong_names_list_the_choices():
    with pytest.raises(ValueError, match="no benchmark 'gsm'; choose from gsm8k, mmlu_pro, gpqa"):
        load("gsm")
    with pytest.raises(ValueError, match="mmlu has no subset 'law'; choose from all, abstract"):
        load("mmlu", subset="law")


@pytest.mark.parametrize(
    "stem, name",
    [
        ("gsm8k.test", "gsm8k"), ("mmlu_virology.dev", "mmlu"), ("mmlu_pro.test", "mmlu_pro"),
        ("mmlu_redux.test", "mmlu_redux"), ("math500.test", "math500"), ("math.train", "math"),
        ("gpqa_diamond.test", "gpqa"), ("mathematics", None), ("gsm8k2", None), ("mine", None),
    ],
)  # fmt: skip
def test_benchmarks_of_file_names(stem, name):
    spec = of_file(stem)
    assert (spec and spec.name) == name


def test_rows_with_faults_name_file_and_line(gsm8k):
    path = gsm8k / "gsm8k.train.jsonl"
    good = json.dumps({"question": "?", "answer": "#### 1"})
    for line, message in (
        ('{"question": "cut', "expected a JSON object a line"), ("[1]", "got list"),
        ('{"question": "?"}', "expected the column 'answer'"),
    ):  # fmt: skip
        path.write_text(f"{good}\n\n{line}\n")
        with pytest.raises(ValueError, match=f"gsm8k.train.jsonl:3: .*{message}"):
            load("gsm8k", "train", folder=gsm8k)
    twice = json.dumps({"id": 1, "question": "?", "choices": None, "answer": "1"})
    path.write_text(f"{twice}\n{twice}\n")
    with pytest.raises(ValueError, match="jsonl:2: duplicate id '1', first at .*jsonl:1"):
        load("gsm8k", "train", folder=gsm8k)


def test_every_benchmark_has_a_published_count():
    assert all(n > 0 for spec in BENCHMARKS.values() for n in spec.counts.values())
