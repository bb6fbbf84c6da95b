"""Rows that stop make room: every reply is the one its prompt gets alone."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from gradejax.generation import loop as loop_lib
from gradejax.generation import refill
from gradejax.generation.decode import generate
from gradejax.generation.sampling import GREEDY, Sampling
from gradejax.models.hf_weights import load_checkpoint

HF = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
NEW = 12


@pytest.fixture(scope="module", params=["qwen2", "phi3"])
def system(request):
    """A decoder, its tree and 23 prompts of 1 to 40 tokens; phi3 has a sliding window."""
    checkpoint = load_checkpoint(HF / request.param)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 113, rng.integers(1, 40)).tolist() for _ in range(23)]
    return checkpoint, prompts


def texts(system, sampling, batch_size, **options):
    checkpoint, prompts = system
    options = {"stop_ids": tuple(range(3, 16)), "pooling": "mean"} | options
    return generate(
        checkpoint.model, checkpoint.params, prompts, max_new_tokens=NEW, sampling=sampling,
        seeds=range(100, 100 + len(prompts)), batch_size=batch_size, **options,
    )  # fmt: skip


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0, 0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch_size", [1, 6, 8])
def test_replies_are_those_of_one_large_batch(system, sampling, batch_size):
    whole, kept = texts(system, sampling, 64), texts(system, sampling, batch_size)
    # the case is worth nothing if all replies end alike
    assert len({len(r.tokens) for r in whole}) > 4
    assert {r.finish_reason for r in whole} == {"stop", "length"}
    for a, b in zip(whole, kept, strict=True):
        assert a.tokens == b.tokens and a.finish_reason == b.finish_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        np.testing.assert_allclose(a.hidden, b.hidden, atol=2e-5)


@pytest.mark.parametrize("pooling", ["first", "last", None])
def test_pooled_states_follow_their_row(system, pooling):
    whole = texts(system, GREEDY, 64, pooling=pooling)
    for a, b in zip(whole, texts(system, GREEDY, 8, pooling=pooling), strict=True):
        assert a.tokens == b.tokens
        if pooling is not None:
            np.testing.assert_allclose(a.hidden, b.hidden, atol=2e-5)


def test_all_rows_to_the_limit(system):
    """The ring comes round several times, and nothing of a row's last tenant is left."""
    whole = texts(system, GREEDY, 64, stop_ids=())
    assert all(len(r.tokens) == NEW for r in whole)
    assert [r.tokens for r in whole] == [r.tokens for r in texts(system, GREEDY, 4, stop_ids=())]


def test_a_common_beginning_is_kept(system):
    checkpoint, prompts = system
    common = (checkpoint, [[*range(30, 50), *p] for p in prompts])
    assert [r.tokens for r in texts(common, GREEDY, 64, share_prefix=False)] == [
        r.tokens for r in texts(common, GREEDY, 8)
    ]


def test_fewer_steps_than_batches_that_wait(system, monkeypatch):
    """Two long replies among short ones: waiting batches step to the limit each time."""
    steps = []
    real = loop_lib.run

    def counted(*args, **kwargs):
        before = int(args[2].cache.slot), args[2].cache.length
        state = real(*args, **kwargs)
        steps.append((int(state.cache.slot) - before[0]) % before[1])
        return state

    monkeypatch.setattr(loop_lib, "run", counted)
    replies = texts(system, Sampling(1.0), 8)
    waiting = sum(
        max(len(r.tokens) for r in replies[at : at + 8]) for at in range(0, len(replies), 8)
    )
    drawn = sum(len(r.tokens) for r in replies)
    # no fewer than if no row ever waited, and fewer than whole batches take
    assert drawn / 8 - len(replies) / 8 <= sum(steps) < waiting + NEW


def test_plan_joins_lengths_that_few_prompts_have():
    lengths = [20] * 5 + [60] * 9 + [100, 150]
    assert refill.plan(lengths, 512, 4) == [
        (192, [15, 14, *range(5, 14)]), (32, list(range(5)))]  # fmt: skip
    assert refill.plan(lengths, 512, 1) == [
        (192, [15]), (128, [14]), (64, list(range(5, 14))), (32, list(range(5)))]  # fmt: skip
    assert refill.plan([20], 24, 4) == [(24, [0])]


def test_positions_of_stopped_rows_stay_in_the_context(system):
    checkpoint, _ = system
    config = dataclasses.replace(checkpoint.config, max_positions=40)
    model = checkpoint.model.clone(config=config)
    seen = []
    real = loop_lib.run

    def watched(*args, **kwargs):
        state = real(*args, **kwargs)
        seen.append(int(jax.device_get(state.position).max()))
        return state

    prompts = [[5] * 28, *[[7] * 3 for _ in range(9)]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_lib, "run", watched)
        generate(model, checkpoint.params, prompts, max_new_tokens=NEW, stop_ids=(),
                 sampling=GREEDY, seeds=[0] * 10, batch_size=2)  # fmt: skip
    assert max(seen) < 40
