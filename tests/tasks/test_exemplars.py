"""Worked examples come from training items, never the question itself (fault F07)."""

import pytest

from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks import few_shot_from, load, task_named
from gradejax.tasks.exemplars import EXEMPLARS, with_exemplars
from gradejax.tasks.prompts import FORMATS, chain_of_thought_messages

TASK = make_task("f", "number", FORMATS["gsm8k"])


def items(n, **meta):
    return [Example(f"t{i}", f"question {i}", None, str(i), "f", meta=meta) for i in range(n)]


def shown(example):
    return example.meta[EXEMPLARS].split("\n\n")


def worked(example):
    return f"working {example.id}"


def test_an_item_is_never_its_own_worked_example():
    pool = items(10)
    for example in with_exemplars(pool, pool, TASK, worked, k=3, seed=0):
        lines = shown(example)
        assert len(lines) == len(set(lines)) == 3
        assert not any(f"Question: {example.question} " in line for line in lines)
    # a copy of an item under another id, dressed otherwise, is the item
    copy = Example("x", "Question  4?", None, "4", "f")
    for seed in range(10):
        (got,) = with_exemplars([copy], pool, TASK, worked, k=9, seed=seed)
        assert "question 4 " not in got.meta[EXEMPLARS]


def test_equal_seeds_give_equal_examples():
    pool = items(30)
    a = with_exemplars(pool[:5], pool[5:], TASK, worked, k=4, seed=1)
    assert a == with_exemplars(pool[:5], list(reversed(pool[5:])), TASK, worked, k=4, seed=1)
    assert a != with_exemplars(pool[:5], pool[5:], TASK, worked, k=4, seed=2)
    assert len({e.meta[EXEMPLARS] for e in a}) == 1  # one beginning of all prompts


def test_examples_share_the_subject():
    pool = [*items(4, subject="a"), *(Example("b", "b?", None, "1", "f", meta={"subject": "b"}),)]
    (got,) = with_exemplars(
        [Example("x", "x?", None, "1", meta={"subject": "a"})], pool, TASK, worked, k=4,
        key="subject",
    )  # fmt: skip
    assert "b?" not in got.meta[EXEMPLARS]
    with pytest.raises(ValueError, match="expected 2 other items of subject 'b'.*got 1"):
        with_exemplars(
            [Example("x", "x?", None, "1", meta={"subject": "b"})], pool, TASK, worked, k=2,
            key="subject",
        )  # fmt: skip
    # all there are, its own copy among them: one fewer
    (got,) = with_exemplars(pool[:1], pool, TASK, worked, k=4, key="subject")
    assert len(shown(got)) == 3
    with pytest.raises(ValueError, match="expected k >= 1"):
        with_exemplars(pool, pool, TASK, worked, k=0)


def test_the_chain_of_thought_prompt():
    (got,) = with_exemplars(items(1), items(3)[1:], TASK, worked, k=1)
    (message,) = chain_of_thought_messages("question 0", "FORMAT.", got.meta[EXEMPLARS])
    begin = "Solve the problem with step-by-step reasoning, following the examples."
    assert message["role"] == "user" and message["content"].startswith(begin + "\n\nQuestion: ")
    assert message["content"].endswith("\n\nQuestion: question 0 FORMAT.")
    assert "\nworking t" in message["content"] and "\nANSWER: " in message["content"]


@pytest.mark.parametrize(
    "name, split, k, subset",
    [("gsm8k", "test", 8, ""), ("gsm8k", "train", 8, ""), ("mmlu_pro", "test", 5, ""),
     ("mmlu", "test", 5, "college_physics"), ("arc_challenge", "test", 5, "")],
)  # fmt: skip
def test_published_benchmarks(shared, name, split, k, subset):
    folder = f"{shared}/data"
    loaded = load(name, split, subset=subset, folder=folder)
    loaded = loaded._replace(examples=loaded.examples[:50])
    task = task_named(name)
    for example in few_shot_from(loaded, k, folder=folder, subset=subset):
        text = example.meta[EXEMPLARS]
        assert text.count("Question: ") >= k and text.count("\nANSWER: ") == k
        assert example.question not in text and "<<" not in text
        # an example ends as the prompt asks replies to end
        last = text.rsplit("Question: ", 1)[1]
        assert task.extract(last, example) is not None
    if name == "mmlu_pro":
        assert "Let's think step by step" not in text and "The answer is (" not in text


@pytest.mark.parametrize("name", ["gpqa", "aime2025", "bbh_navigate", "math500", "humaneval"])
def test_a_test_set_alone_gives_no_worked_examples(name):
    from gradejax.tasks.benchmarks import Loaded, spec_named

    loaded = Loaded(spec_named(name), task_named(name), (), "", ())
    with pytest.raises(ValueError, match="worked examples are never taken from a test set"):
        few_shot_from(loaded, 2)
