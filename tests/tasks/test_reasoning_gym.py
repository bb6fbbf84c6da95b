"""What the Reasoning Gym families promise: varied answers and reasoning-gym's own verdicts."""

import collections
import json

import pytest

from gradejax.tasks.base import Outcome
from gradejax.tasks.reasoning_gym import (
    FAMILIES,
    MULTILINE,
    SOURCES,
    ReasoningGymTask,
    is_well_posed,
    make_examples,
    open_dataset,
    source_named,
)

# item of simple_equations-hard that reasoning-gym prints as "0 = 0", found by scanning
CANCELLED = 1205

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)


def example_of(name, seed=11):
    return make_examples(source_named(name), seed, 1)[0]


@every_source
def test_no_answer_is_common_and_questions_are_thousands(source):
    examples = make_examples(source, seed=3, n=1000)
    commonest = collections.Counter(e.answer for e in examples).most_common(1)[0][1]
    assert commonest < 100
    # 1,000 draws of N equal ones leave N(1 - exp(-1000/N)) distinct: 2,000 gives 787, 100 gives 100
    assert len({e.question for e in examples}) > 787


@every_source
def test_gold_is_right_and_anothers_gold_is_not(source):
    examples = make_examples(source, seed=5, n=60)
    for example, other in zip(examples, examples[1:] + examples[:1], strict=True):
        gold = ReasoningGymTask.judge(f"ANSWER: {example.answer}", "stop", example)
        assert gold.outcome is Outcome.RIGHT, example
        if other.answer != example.answer:
            wrong = ReasoningGymTask.judge(f"ANSWER: {other.answer}", "stop", example)
            assert wrong.outcome is Outcome.WRONG, (example, other.answer)
        assert not ReasoningGymTask.grade(None, example)


@every_source
def test_meta_is_plain_json_and_canonical_is_a_fixed_point(source):
    for example in make_examples(source, seed=7, n=20):
        entry = example.meta["entry"]
        assert json.loads(json.dumps(entry)) == entry
        once = ReasoningGymTask.canonical(example.answer, example)
        assert ReasoningGymTask.canonical(once, example) == once


def test_families_have_three_to_five_generators_in_both_difficulties():
    assert len({s.name for s in SOURCES}) == len(SOURCES)
    for family in FAMILIES:
        own = [s for s in SOURCES if s.family == family]
        assert 3 <= len({s.generator for s in own}) <= 5
        assert {s.difficulty for s in own} == {"easy", "hard"}


def test_a_draw_is_a_stretch_of_one_stream():
    source = source_named("chain_sum-hard")
    assert make_examples(source, 40, 5)[3:] == make_examples(source, 43, 2)
    assert make_examples(source, 40, 5) != make_examples(source, 41, 5)


@pytest.mark.parametrize(
    ("name", "spell"),
    [
        ("chain_sum-easy", lambda a: f"+{int(a):,}.00" if int(a) >= 0 else f"{int(a)}.0"),
        ("products-hard", lambda a: f"00{int(a):,}"),
        ("color_cube_rotation-easy", str.upper),
        ("manipulate_matrix-easy", lambda a: a.replace(" ", "  ").replace("\n", " \n")),
        ("mini_sudoku-easy", lambda a: a.replace("\n", " \n")),
        (
            "knights_knaves-hard",
            lambda a: ", and ".join(reversed(a.strip(".").replace("and ", "").split(", "))),
        ),
    ],
)
def test_spellings_that_the_scorer_calls_equal_are_one_candidate(name, spell):
    for example in make_examples(source_named(name), seed=21, n=20):
        spelt = spell(example.answer)
        # text comparison would count two candidates and split the vote between them
        assert spelt != example.answer
        canonical = ReasoningGymTask.canonical
        assert canonical(spelt, example) == canonical(example.answer, example)
        assert ReasoningGymTask.grade(spelt, example)


@pytest.mark.parametrize("name", ["leg_counting-easy", "word_sequence_reversal-easy"])
def test_text_scorers_keep_spellings_apart(name):
    example = example_of(name)
    spelt = example.answer + ".0"
    assert ReasoningGymTask.canonical(spelt, example) == spelt
    assert not ReasoningGymTask.grade(spelt, example)


def test_a_huge_exponent_is_read_without_writing_out_its_zeros():
    example = example_of("chain_sum-easy")
    for text in ("1e999999", "1e-999999", "nan", "inf", "-0", "--5"):
        canonical = ReasoningGymTask.canonical(text, example)
        assert len(canonical) < 20
        assert not ReasoningGymTask.grade(text, example) or example.answer == "0"
    assert ReasoningGymTask.canonical("-0.00", example) == "0"


def test_the_last_marker_counts_and_only_its_line():
    example = example_of("leg_counting-hard")
    reply = "ANSWER: 3 no\n4*4=16\nAnswer: 16  \nthat is it 99"
    assert ReasoningGymTask.extract(reply, example) == "16"


def test_a_matrix_is_read_to_its_last_row():
    example = example_of("mini_sudoku-hard")
    assert source_named(example.source).generator in MULTILINE
    reply = f"ANSWER: {example.answer}\n\nDone."
    # reading one line, as for numbers, would leave a quarter of the board
    assert ReasoningGymTask.extract(reply, example) == example.answer
    assert ReasoningGymTask.judge(reply, "stop", example).outcome is Outcome.RIGHT


def test_without_a_marker_only_arithmetic_has_a_reading():
    assert ReasoningGymTask.extract("47-12=35\nso -35", example_of("chain_sum-hard")) == "-35"
    assert ReasoningGymTask.extract("it is red", example_of("color_cube_rotation-easy")) is None
    assert ReasoningGymTask.extract("no digits", example_of("chain_sum-hard")) is None
    assert ReasoningGymTask.extract("ANSWER:  \n", example_of("aiw-easy")) is None


def test_a_cut_reply_is_no_answer_even_when_it_is_right():
    example = example_of("chain_sum-easy")
    judged = ReasoningGymTask.judge(f"ANSWER: {example.answer}", "length", example)
    assert judged.outcome is Outcome.TRUNCATED


def test_an_equation_that_cancels_is_left_out():
    source = source_named("simple_equations-hard")
    entry = open_dataset(source, CANCELLED, 1)[0]
    assert entry["metadata"]["equation"] == "0 = 0"
    assert not is_well_posed(entry)
    drawn = make_examples(source, CANCELLED, 1)[0]
    assert drawn.id == f"{source.name}/{CANCELLED + 1}"


def test_wrong_names_and_sizes_are_refused_with_the_choices():
    with pytest.raises(ValueError, match="chain_sums.*chain_sum-easy"):
        source_named("chain_sums")
    with pytest.raises(ValueError, match="n >= 1, got 0"):
        make_examples(SOURCES[0], 0, 0)
