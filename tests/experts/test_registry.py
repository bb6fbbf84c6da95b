import dataclasses

import pytest
from fake_experts import FakeLoader, make_registry

from gradejax.experts.model_pool import ModelPool
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.spec import ExpertSpec

HEAD = ExpertSpec(name="M0", model="head")
A1 = ExpertSpec(name="A1", model="math", manager="a")


@pytest.mark.parametrize(("args", "said"), [
    (((), HEAD, ("a",)), "at least one agent"),
    (((A1, A1), HEAD, ("a",)), r"duplicate expert names \['A1'\]"),
    (((A1,), dataclasses.replace(HEAD, name="A1"), ("a",)), "duplicate expert names"),
    (((A1,), HEAD, ("a", "a")), "duplicate manager names"),
    (((A1,), HEAD, ("b",)), r"agent 'A1': unknown manager 'a'; choose from \['b'\]"),
    (((dataclasses.replace(A1, manager=None),), HEAD, ("a",)), "unknown manager None"),
    (((A1,), dataclasses.replace(HEAD, manager="a"), ("a",)), "it must have none"),
    (((A1,), HEAD, ("a", "b")), r"managers \['b'\] own no agent"),
])
def test_what_a_registry_refuses(args, said):
    with pytest.raises(ValueError, match=said):
        ExpertRegistry(*args)


def test_unknown_expert_lists_the_choices():
    with pytest.raises(ValueError, match=r"unknown expert 'A9'; choose from \['A1', 'A2', 'B1'"):
        make_registry()["A9"]


def test_swap_makes_a_new_registry_and_keeps_seat_and_manager():
    old = make_registry()
    new = old.swap("B1", ExpertSpec(name="phi", model="math", seed=9))
    assert new["B1"] == ExpertSpec(name="B1", model="math", seed=9, manager="logic")
    assert old["B1"].model == "logic" and new.names == old.names
    assert old.swap("M0", ExpertSpec(name="x", model="math")).orchestrator.model == "math"
    with pytest.raises(ValueError, match="names the manager 'arithmetic'.*belongs to 'logic'"):
        old.swap("B1", ExpertSpec(name="B1", model="math", manager="arithmetic"))
    with pytest.raises(ValueError, match="unknown expert 'B9'"):
        old.swap("B9", A1)


def test_seats_that_share_a_model_share_one_tree_in_memory():
    loader = FakeLoader()
    a1, a2, b1, m0 = make_registry().load(ModelPool(loader))
    assert a1 is a2 and a1.params["w"] is a2.params["w"]
    assert b1.params["w"] is not a1.params["w"] and m0 is not b1
    assert loader.loads == ["math", "logic", "head"]  # one load a seat would be 4


def test_a_released_model_is_loaded_again():
    loader = FakeLoader()
    models, spec = ModelPool(loader), make_registry()["A1"]
    models.get(spec)
    models.release(spec)
    assert len(models) == 0
    models.get(spec)
    assert loader.loads == ["math", "math"]


def test_facts_of_the_pool():
    pool = make_registry().pool(ModelPool(FakeLoader()))
    assert pool.agents == ("A1", "A2", "B1") and pool.managers == ("arithmetic", "logic")
    assert pool.manager_of == (0, 0, 1)
    assert pool.params == (50, 50, 30, 20) and pool.widths == (5, 5, 3, 2)
    assert (pool.candidate_width, pool.trunk_width) == (2, 2)
    assert make_registry().pool(ModelPool(FakeLoader()), candidate_width=7).candidate_width == 7
