"""The library object: answers, traces, fallback, abstaining and swaps, on the shipped experts."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest

import gradejax
from experiments import config as config_lib
from experiments.configs import grade_tiny
from experiments.tiny_corpus import questions
from gradejax.experts.replies import ExpertCallError, Reply
from gradejax.systems import asking
from gradejax.systems.description import pool_entries, registry_of
from gradejax.systems.grade import fit
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.exchange import _held_out
from gradejax.systems.grade.network import Shape
from gradejax.systems.grade.show import Origin
from gradejax.systems.grade.system import NOBODY, Anchors, GradeSystem
from gradejax.systems.requests import examples_of
from gradejax.tasks import code
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example
from gradejax.tasks.benchmarks import task_named
from gradejax.tasks.prompts import FORMATS
from gradejax.tasks.reasoning_gym import FAMILIES, ReasoningGymTask

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    """(untrained system, question set of 12)."""
    entries = config_lib.to_dict(grade_tiny.get_config())["pool"]
    for spec in (*entries["agents"].values(), entries["orchestrator"]):
        spec["model"] = str(ROOT / spec["model"])
    frozen = asking.open_frozen(registry_of(entries), None, batch_size=16)
    examples = [dataclasses.replace(e, id=f"q/{e.id}") for e in questions("valid", 12)]
    known = asking.ask_questions(frozen, examples, ReasoningGymTask, FAMILIES, first_id=0)
    shape = Shape(GradeConfig(d=8, memory_slots=8), frozen.pool(), frozen.trunk.model.config)
    state = fit.start(shape, known, frozen.trunk.params, seed=3)
    anchors = Anchors(known.examples, known.records.features, known.records.available)
    system = GradeSystem(frozen, ReasoningGymTask, shape, state.params, state.memory,
                         state.calibration, anchors)  # fmt: skip
    return system, known


def test_answers_are_those_of_all_features(made):
    """Asking only the chosen experts decides as if everyone had been asked."""
    system, known = made
    full = system.infer(fit.whole(known, np.arange(12), 16))
    answers = system.answer(known.examples)
    seats = system.seats
    for i, answer in enumerate(answers):
        trace = answer.trace
        assert trace.depth == int(full.depth[i])
        assert trace.asked == tuple(s for s, m in zip(seats, full.asked[i], strict=True) if m)
        assert trace.kept == tuple(s for s, m in zip(seats, full.kept[i], strict=True) if m)
        column = int(full.answer[i])
        assert answer.text == (known.texts[i][column] if column >= 0 else None)
        assert answer.probability == pytest.approx(float(full.probability[i]), abs=1e-5)
        paid = {*trace.asked, "M0"}
        cost = sum(p for s, p in zip(seats, system.shape.pool.params, strict=True) if s in paid)
        assert trace.active_params == cost


def test_a_failed_expert_is_replaced(made):
    system, known = made
    before = system.answer(known.examples)
    broken = next(s for a in before for s in a.trace.asked if s != "M0")
    model = system.frozen.registry[broken].model

    class Failing:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def reply(self, spec, prompts, seeds):
            if spec.model == model:
                raise ExpertCallError("timeout", "no reply in time")
            return self.inner.reply(spec, prompts, seeds)

    frozen = dataclasses.replace(system.frozen, provider=Failing(system.frozen.provider))
    answers = dataclasses.replace(system, frozen=frozen).answer(known.examples)
    hit = 0
    for answer in answers:
        for seat in answer.trace.asked:
            assert system.frozen.registry[seat].model != model
        hit += broken in answer.trace.failed
        assert answer.trace.asked
    assert hit > 0


def test_abstaining_keeps_the_probability_and_the_trace(made):
    system, known = made
    plain = system.answer(known.examples[:4])
    careful = system.answer(known.examples[:4], abstain_below=1.0)
    for a, b in zip(plain, careful, strict=True):
        assert a.probability == b.probability and not a.abstained
        if a.text is not None and a.probability < 1:
            assert b.abstained and b.text is None
        assert a.trace.votes == b.trace.votes


def test_plain_text_questions_and_bad_ones(made):
    system, _ = made
    text = "State the final answer to the following arithmetic problem: 2 + 3 ="
    (answer,) = system.answer([text])
    assert answer.trace.asked
    with pytest.raises(ValueError, match="question 0 must be a non-empty text"):
        system.answer([" "])
    with pytest.raises(ValueError, match="list of questions"):
        system.answer("What is 2 + 3?")
    with pytest.raises(ValueError, match=r"abstain_below must be in \[0, 1\]"):
        system.answer(["2 + 3 ="], abstain_below=2)


def test_a_bare_text_is_asked_as_the_questions_trained_on(made):
    """In other words the experts, trained on one form of prompt, answer other things."""
    system, known = made
    pairs = zip(system.answer([e.question for e in known.examples]),
                system.answer(known.examples), strict=True)  # fmt: skip
    for bare, whole in pairs:
        assert (bare.trace.asked, bare.trace.tokens) == (whole.trace.asked, whole.trace.tokens)


def test_swapping_the_same_weights_keeps_the_adapter(made):
    system, _ = made
    spec = dataclasses.replace(system.frozen.registry["A2"], seed=9)
    swapped, report = system.swap("A1", spec)
    assert report["align"] == "keep"
    old, new = (s.params.network["params"]["adapters"]["agent_0"]["kernel"]
                for s in (system, swapped))  # fmt: skip
    np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
    # Gates are untouched, statistics are the new expert's.
    for name in ("depth", "assignment", "read", "prune"):
        jax.tree.map(
            np.testing.assert_array_equal, system.params.network["params"][name],
            swapped.params.network["params"][name],
        )  # fmt: skip
    assert not np.array_equal(system.calibration.mean[0], swapped.calibration.mean[0])


def test_swapping_another_width_fits_a_map(made):
    system, known = made
    # The orchestrator's model (another width) takes B3's seat.
    spec = dataclasses.replace(system.frozen.registry.orchestrator, manager=None)
    with pytest.warns(UserWarning, match="held-out anchors"):
        swapped, report = system.swap("B3", spec, force=True)
    assert report["align"] == "ridge" and report["penalty"] > 0
    assert swapped.shape.pool.widths[5] == swapped.shape.pool.widths[6]
    answers = swapped.answer(known.examples[:3])
    assert all(a.trace.asked for a in answers)
    with pytest.raises(ValueError, match="align='keep' needs features of width"):
        system.swap("B3", spec, align="keep")
    with pytest.raises(ValueError, match="unknown align"):
        system.swap("B3", spec, align="copy")
    with pytest.raises(ValueError, match="is the orchestrator"):
        system.swap("M0", system.frozen.registry["A1"])


def test_a_pool_survives_json(made):
    system, _ = made
    registry = system.frozen.registry
    again = registry_of(pool_entries(registry))
    assert again.names == registry.names and again.managers == registry.managers
    for one, two in zip(again.seats, registry.seats, strict=True):
        # The folder may be written relative to the checkout; it is the same folder.
        assert one.identity == two.identity
        assert dataclasses.replace(one, model=two.model) == two


def test_agents_with_one_model_share_one_tree(made):
    system, _ = made
    models = [system.frozen.models.get(s) for s in system.frozen.registry.seats]
    assert models[0].params is models[1].params is models[2].params
    assert models[3].params is models[4].params
    assert len({id(m.params) for m in models}) == 4 == len(system.frozen.models)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"questions": None}, "expected a list of questions; got None"),
        ({"questions": ["1 + 1 ="], "batch_size": 0}, "batch_size must be .* at least 1, got 0"),
        ({"questions": ["1 + 1 ="], "batch_size": 2.0}, "batch_size must be a whole number"),
        ({"questions": ["1 + 1 ="], "abstain_below": "a"}, r"abstain_below .* \[0, 1\], got 'a'"),
        ({"questions": ["1 + 1 =", "what is \ud800?"]}, "question 1 holds the lone surrogate U"),
        ({"questions": [Example("a", "which?", ("x", "\udfff"), "")]}, "question 0 holds the lone"),
        ({"questions": [Example("a", " ", None, "")]}, "question 0 must be a non-empty text"),
        ({"questions": [3]}, "question 0 must be a non-empty text"),
    ],
)
def test_requests_that_make_no_sense_are_refused(made, arguments, said):
    with pytest.raises(ValueError, match=said):
        made[0].answer(**arguments)


def test_a_question_that_is_too_long_is_abstained_from_alone(made):
    """One too long for the encoder, one too long for every seat; their neighbours are answered."""
    system, known = made
    trunk = system.frozen.trunk.model.config.max_positions
    tokens = lambda text: len(system.frozen.chat.tokenizer(text)["input_ids"])  # noqa: E731
    unreadable = "1 + " * trunk + "1 ="
    seats = "1 + "
    while tokens(seats + "1 + ") <= trunk:
        seats += "1 + "
    for seat in system.frozen.registry.seats:  # the prompt around it no longer fits
        assert tokens(seats) + seat.max_new_tokens > system.frozen.models.get(seat).context
    plain = [known.examples[0], known.examples[1]]
    first, one, two, last = system.answer([plain[0], unreadable, seats, plain[1]])
    for answer in (one, two):
        assert answer.text is None and answer.abstained and answer.probability == 0
        assert answer.trace.depth == NOBODY and not answer.trace.asked and answer.trace.failed
        assert all(why.startswith("too_long: ") for why in answer.trace.failed.values())
    assert "the encoder reads at most" in one.trace.failed["M0"]
    assert set(two.trace.failed) == set(system.seats)
    for got, want in zip((first, last), system.answer(plain), strict=True):
        assert (got.text, got.trace.votes) == (want.text, want.trace.votes)
    alone = system.answer([dataclasses.replace(known.examples[0], question=seats,
                                               choices=("x", "y"))])  # fmt: skip
    assert alone[0].text is None and alone[0].abstained


class Unasked:
    """A provider that may describe and encode, and must not be asked."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def reply(self, *_):
        raise AssertionError("asked")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"align": "foo"}, "unknown align 'foo'; choose from 'keep', 'ridge'"),
        ({"held_out": 1.0}, r"held_out must be a share in \[0, 1\), got 1.0"),
        ({"held_out": -0.1}, "held_out must be a share"),
        ({"held_out": "a"}, "held_out must be a share"),
        ({"spec": 3}, "expects a gradejax.ExpertSpec or the path of a model's folder, got 3"),
        ({"spec": "no/such"}, "there is no model folder 'no/such'; .* pass a gradejax.ExpertSpec"),
        ({"align": "keep", "seat": "B3"}, "align='keep' needs features of width"),
        ({"seat": "Z"}, "unknown expert 'Z'"),
    ],
)
def test_swaps_that_make_no_sense_are_refused_before_anyone_is_asked(made, options, said):
    system, _ = made
    frozen = dataclasses.replace(system.frozen, provider=Unasked(system.frozen.provider))
    asked = dataclasses.replace(system, frozen=frozen)
    spec = dataclasses.replace(system.frozen.registry.orchestrator, manager=None)
    with pytest.raises(ValueError, match=said):
        asked.swap(**{"seat": "A1", "spec": spec} | options)


def test_a_swap_without_held_out_anchors_measures_nothing(made):
    system, _ = made
    spec = dataclasses.replace(system.frozen.registry["A2"], seed=9)
    _, report = system.swap("A1", spec, held_out=0.0)
    assert report["align"] == "keep" and np.isnan(report["held_out_r2"])
    small = dataclasses.replace(system.frozen.registry.orchestrator, manager=None)
    _, report = system.swap("B3", small, held_out=0)
    assert report["align"] == "ridge" and np.isnan(report["held_out_r2"])


def test_a_folder_is_asked_as_the_replaced_expert_was(made):
    system, _ = made
    folder = system.frozen.registry["A1"].model  # the same weights
    for path in (folder, pathlib.Path(folder)):
        swapped, report = system.swap("A1", path)
        assert report["align"] == "keep" and report["held_out_r2"] == pytest.approx(1.0)
        assert swapped.frozen.registry["A1"] == system.frozen.registry["A1"]


def test_an_adapter_that_explains_nothing_is_refused(made, tmp_path):
    """Another model of the same width: its states under the old adapter are noise."""
    system, _ = made
    old, models = system.frozen.registry["A1"], system.frozen.models
    there = len(models)
    folder = shutil.copytree(system.frozen.registry["B1"].model, tmp_path / "other")
    with pytest.raises(ValueError, match=r"swap of 'A1' refused: .* R² of -\d+\.\d+ .*force=True"):
        system.swap("A1", folder)
    assert system.frozen.registry["A1"] == old and len(models) == there
    with pytest.warns(UserWarning, match="held-out anchors"):
        swapped, report = system.swap("A1", folder, force=True)
    assert report["align"] == "keep" and report["held_out_r2"] < 0
    new = swapped.frozen.registry["A1"]
    assert new == dataclasses.replace(old, model=str(folder))
    models.release(new)


def test_features_of_fresh_questions_can_be_decided_on(made):
    """What `answer` decides with the chosen experts, `infer` decides from everybody's features."""
    system, known = made
    features = system.features([known.examples[0]])
    result = system.infer(features.batch)
    (answer,) = system.answer([known.examples[0]])
    assert int(result.depth[0]) == answer.trace.depth
    column = int(result.answer[0])
    assert answer.text == (features.candidates[0][column] if column >= 0 else None)
    with pytest.raises(ValueError, match="at least one question"):
        system.features([])


def test_a_system_says_what_it_is_in_a_few_lines(made):
    text = repr(made[0])
    assert text.startswith("GradeSystem") and len(text.splitlines()) < 15 and len(text) < 1000
    for word in ("reasoning_gym", "6 agents", "M0", "A1 (checkpoints/", "depth", "12 questions"):
        assert word in text, word
    placed = dataclasses.replace(made[0], origin=Origin("runs/x", 3, 200, ("seed_4",)))
    assert "seed: 3, step 200 (beside it: seed_4)" in repr(placed)
    assert "workdir: runs/x" in repr(placed)


@pytest.fixture(scope="module")
def choosing(made):
    """(the system with a task of options, a dict of one question)."""
    system = dataclasses.replace(made[0], task=make_task("colours", "choice", FORMATS["choice"]))
    return system, {"question": "Which is a colour?", "choices": ["one", "red", "two", "three"]}


def test_a_question_without_options_is_refused_where_options_are_chosen(choosing):
    system, row = choosing
    for bare in ("Which is a colour?", {"question": "Which?"}, Example("a", "Which?", None, "")):
        with pytest.raises(ValueError, match="chooses among options. Pass gradejax.Example"):
            system.answer([bare])
    with pytest.raises(ValueError, match="got a single one"):
        system.answer(row)
    with pytest.raises(ValueError, match="'choices' must be a list of 2 to 26 texts"):
        system.answer([row | {"choices": "red"}])
    with pytest.raises(ValueError, match="got a dict with"):
        system.answer([{"choices": ["a", "b"]}])


def test_options_come_as_a_dict_or_an_example(choosing):
    system, row = choosing
    example = Example("q", row["question"], tuple(row["choices"]), "")
    one, two = system.answer([row, example])
    assert one.text in "ABCD" and (one.text, one.trace.votes) == (two.text, two.trace.votes)
    assert "one of the options" in repr(system)


def test_a_program_is_answered_without_being_run(made, monkeypatch):
    """Whoever asks has no tests; with them a vote would see the verdict it is to be judged by."""
    monkeypatch.setattr(code, "check", lambda *a, **k: pytest.fail("a program was run"))
    system = dataclasses.replace(made[0], task=task_named("humaneval"))
    row = {"question": "def add(a, b):\n", "entry_point": "add"}
    replies = {
        seat: [Reply("def add(a, b):\n    return a + b", np.zeros(2, np.int32), np.zeros(2),
                     "stop", np.zeros(w, np.float32), 3, 0.0)]
        for seat, w in zip(system.seats, system.shape.pool.widths, strict=True)
    }  # fmt: skip
    examples = examples_of([row], system.task)
    known = system._question_set(examples, replies, [np.ones((3, system.shape.pool.trunk_width))])
    assert known.records.answers.tolist() == [[0] * 7] and not known.records.gold.any()
    with pytest.raises(ValueError, match="entry_point"):
        system.answer(["def add(a, b):"])


def test_the_trace_says_who_named_the_answer(choosing, made):
    system, known = made
    for answer in system.answer(known.examples):
        assert set(answer.trace.named_by) == {
            s for s, vote in answer.trace.votes.items() if vote is not None and vote == answer.text
        }
    system, row = choosing
    # none of the tiny experts knows what an option is
    (answer,) = system.answer([row])
    assert answer.text and set(answer.trace.votes.values()) == {None}
    assert answer.trace.named_by == ()


def test_a_swap_without_anchors_says_what_is_missing(made):
    system, _ = made
    bare = dataclasses.replace(system, anchors=None, without_anchors="anchors.json is damaged")
    with pytest.raises(ValueError, match="needs the run's anchor questions: anchors.json is dam"):
        bare.swap("A1", system.frozen.registry["A2"])


@pytest.mark.parametrize("share, count", [(0, 0), (0.01, 1), (0.25, 3), (0.4, 5), (0.6, 7),
                                          (0.7, 8), (0.99, 12)])  # fmt: skip
def test_the_share_of_held_out_anchors_is_that_asked_for(share, count):
    """Of 12; every round(1/share)-th would be 6 of 12 for .4 and for .6, and all from .67 on."""
    exists = np.ones(14, bool)
    exists[[0, 5]] = False
    test = _held_out(exists, share)
    assert test.sum() == count and not test[~exists].any()
    if 1 < count < 12:
        assert np.diff(np.flatnonzero(test)).max() <= 14 / count + 2  # spread over all of them


def test_too_few_anchors_to_fit_are_said_before_anyone_is_asked(made, monkeypatch):
    monkeypatch.setattr(asking, "ask_seats", lambda *a, **k: pytest.fail("asked"))
    with pytest.raises(ValueError, match="held_out=0.9 leaves 1 of 12 anchors to fit on; ridge"):
        made[0].swap("A1", str(ROOT / "checkpoints/arithmetic"), align="ridge", held_out=0.9)


def test_small_faults_of_a_call_are_said(made):
    system, known = made
    with pytest.raises(ValueError, match="pass key=jax.random.key"):
        system.infer(fit.whole(known, np.arange(2), 2), decision="sampled")
    assert len(system.answer(known.examples[:1], batch_size=np.int64(2))) == 1
    with pytest.raises(ValueError, match="expects the path of a run's workdir"):
        gradejax.restore("")
