"""The paper's pool and hyperparameters, by shapes alone: no weights are read."""

import functools
import pathlib

import jax
import numpy as np
import pytest

from experiments import config as config_lib
from experiments.configs import grade_paper
from gradejax.models.config import decoder_config
from gradejax.models.decoder import Decoder
from gradejax.systems.description import registry_of
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.describe import abstract_state
from gradejax.systems.grade.network import Shape
from gradejax.types import Pool

# Parameter counts that the models' own pages state, in billions (a tied head counts once).
PUBLISHED = {
    "Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen2.5-7B-Instruct": 7.616,
    "Phi-3-mini-4k-instruct": 3.821,
    "Llama-3.2-3B-Instruct": 3.213,
}


@functools.cache
def abstract(name):
    config = decoder_config(grade_paper.MODEL_CONFIGS[name])
    tree = jax.eval_shape(
        lambda: Decoder(config).init(jax.random.key(0), np.zeros((1, 2), np.int32))
    )
    return config, tree, sum(x.size for x in jax.tree.leaves(tree))


@functools.cache
def pool():
    entries = config_lib.to_dict(grade_paper.get_config())["pool"]
    registry = registry_of(entries)
    models = [pathlib.Path(s.model).name for s in registry.seats]
    configs = [abstract(m) for m in models]
    return Pool(
        agents=tuple(a.name for a in registry.agents),
        managers=registry.managers,
        manager_of=tuple(registry.managers.index(a.manager) for a in registry.agents),
        params=tuple(n for _, _, n in configs),
        widths=tuple(c.width for c, _, _ in configs),
        candidate_width=configs[-1][0].width,
        trunk_width=configs[-1][0].width,
    ), configs[-1]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_each_model_has_its_published_number_of_parameters(name):
    assert round(abstract(name)[2] / 1e9, 3) == PUBLISHED[name]


def test_active_parameters_run_from_half_a_billion_to_the_whole_pool():
    facts, _ = pool()
    assert facts.widths == (3584, 3584, 3584, 3072, 3072, 3072, 896)
    assert round(facts.params[-1] / 1e9, 1) == 0.5
    # 3 × 7.616 + 2 × 3.821 + 3.213 + .494: the paper says about 32, counting 7, 3.8 and 3.
    assert round(facts.total_params / 1e9, 1) == 34.2
    assert pytest.approx(32.1) == 3 * 7 + 2 * 3.8 + 3 + 0.5


def test_the_gates_are_small_and_have_the_right_shapes():
    facts, (trunk, tree, _) = pool()
    settings = config_lib.to_dataclass(
        GradeConfig, config_lib.to_dict(grade_paper.get_config())["grade"], "config.grade"
    )
    state = abstract_state(Shape(settings, facts, trunk), tree)
    network = state.params.network["params"]
    assert network["adapters"]["agent_0"]["kernel"].shape == (3584, 64)
    assert network["adapters"]["agent_6"]["kernel"].shape == (896, 64)
    assert network["assignment"]["agents"].shape == (6, 64)
    assert set(state.params.encoder) == {"layers_22", "layers_23", "norm"}
    gates = sum(x.size for x in jax.tree.leaves(network))
    assert gates < 2_000_000 < facts.params[-1]


def test_the_defaults_are_the_papers_table():
    settings = config_lib.to_dict(grade_paper.get_config())["grade"]
    default = GradeConfig()
    for name, value in settings.items():
        assert getattr(default, name) == value, name
