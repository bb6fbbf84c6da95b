"""The library object: answers, traces, fallback, abstaining and swaps, on the shipped experts."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from experiments import config as config_lib
from experiments.configs import grade_tiny
from experiments.tiny_corpus import questions
from gradejax.experts.replies import ExpertCallError
from gradejax.systems import asking
from gradejax.systems.description import pool_entries, registry_of
from gradejax.systems.grade import fit
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.network import Shape
from gradejax.systems.grade.system import Anchors, GradeSystem
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
        swapped, report = system.swap("B3", spec)
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
