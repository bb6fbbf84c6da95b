"""Reward, cost and supervision against NumPy written from the design, at every depth."""

import functools

import fakes
import jax
import numpy as np
import pytest
import small_grade as small

from gradejax.coordination import combination
from gradejax.systems.grade.network import Shape
from gradejax.systems.grade.objective import cost_share, outcome
from gradejax.types import NO_ANSWER

G = small.SHAPE.config.group_size
M0 = small.N - 1


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


@functools.cache
def outcomes(shape: Shape):
    return small.quick(lambda records, rollout, c: outcome(shape, records, rollout, c))


@small.quick
def _candidates(answers, mask, choices, kept):
    return combination.candidate_set(answers, mask, choices, kept)


def made_up(records, rollout, seed=0):
    """Combined with random logits: every branch of reward and answer is visited."""
    rng = np.random.default_rng(seed)
    q, c = records.candidate_mask.shape
    candidates = np.asarray(
        _candidates(records.answers, records.candidate_mask, records.choices, rollout.kept)
    )
    f = lambda *s: (3 * rng.normal(size=s)).astype(np.float32)  # noqa: E731
    return combination.Combined(
        logits=f(q, G, c + 1), agent_logits=f(q, small.N, c + 1), candidates=candidates,
        states=None, pooled=None, weights=None,
    )  # fmt: skip


def reference(records, rollout, combined, i, g, config):
    """(answer, reward parts) of one rollout."""
    kept = np.flatnonzero(rollout.kept[i, g])
    said = {int(records.answers[i, a]) for a in kept} - {NO_ANSWER}
    real = sorted(np.flatnonzero(records.candidate_mask[i]) if records.choices[i] else said)
    null = records.candidate_mask.shape[1]
    columns = real + ([null] if not records.choices[i] or not real else [])
    logits = combined.logits[i, g]
    answer = max(real, key=lambda c: logits[c]) if real else NO_ANSWER
    gold = int(records.gold[i])
    present = gold in real

    def gold_log_prob(x):
        return max(log_softmax(x[columns])[columns.index(gold)], -5.0) if present else -5.0

    agents = [gold_log_prob(combined.agent_logits[i, a]) for a in kept]
    asked = {*np.flatnonzero(rollout.members[i, g]), M0}
    prices = np.array(small.SHAPE.pool.params, np.float64)
    if config.cost == "token_params":
        prices = prices * records.tokens[i]
    return answer, {
        "correctness": 2.0 * (answer == gold and answer >= 0),
        "system": 0.10 * gold_log_prob(logits),
        "agents": 0.05 * np.mean(agents) if agents else 0.0,
        "cost": -0.05 * prices[list(asked)].sum() / prices.sum(),
    }


@pytest.mark.parametrize("choices", [False, True])
@pytest.mark.parametrize("cost", ["params", "token_params"])
def test_reward_of_every_rollout(choices, cost):
    shape = fakes.shape(cost=cost)
    records = small.batch(seed=3, missing=0.3, choices=choices).records
    # M0 knows next to nothing: let it be right on half of the questions.
    right = np.where(records.available[:, M0], records.gold, NO_ANSWER)
    records.answers[::2, M0] = right[::2]
    rollout = small.random_rollout(records, seed=1)
    combined = made_up(records, rollout)
    got = jax.device_get(outcomes(shape)(records, rollout, combined))
    seen = set()
    for i in range(small.Q):
        for g in range(G):
            if rollout.depth[i, g] < 0:
                continue
            answer, parts = reference(records, rollout, combined, i, g, shape.config)
            assert got.answer[i, g] == answer
            assert got.correct[i, g] == bool(parts["correctness"])
            for name, want in parts.items():
                assert getattr(got.reward, name)[i, g] == pytest.approx(want, abs=2e-6), name
            assert got.reward.total[i, g] == pytest.approx(sum(parts.values()), abs=5e-6)
            assert got.cost[i, g] == pytest.approx(-parts["cost"] / 0.05, abs=1e-6)
            seen.add((int(rollout.depth[i, g]), bool(parts["correctness"])))
    assert seen == {(d, r) for d in range(3) for r in (False, True)}


def alone(g=G):
    """Rollouts of depth 0 of everybody."""
    records = small.batch(seed=3, missing=0.0).records
    rollout = small.random_rollout(records)
    depth = np.zeros((small.Q, g), np.int32)
    only = np.broadcast_to(np.arange(small.N) == M0, (small.Q, g, small.N)).copy()
    nothing = jax.tree.map(np.zeros_like, rollout)
    return records, nothing.replace(depth=depth, manager=depth - 1, members=only, kept=only)


def test_depth_0_pays_the_agent_term_of_m0():
    """S' = {M0}: with an empty set the (negative) agent part would be 0 and subsidise depth 0."""
    records, rollout = alone()
    combined = made_up(records, rollout)
    got = jax.device_get(outcomes(small.SHAPE)(records, rollout, combined))
    # M0 knows no family: where it answered wrongly gold is absent and both parts are the clamp.
    absent = records.gold[:, None] != records.answers[:, M0:]
    assert absent.sum() > 3
    np.testing.assert_allclose(got.reward.agents[absent[:, 0]], 0.05 * -5, rtol=1e-6)
    np.testing.assert_allclose(got.reward.system[absent[:, 0]], 0.10 * -5, rtol=1e-6)
    assert (got.reward.agents < 0).all()
    np.testing.assert_allclose(got.cost, 100 / sum(small.SHAPE.pool.params), rtol=1e-6)


def test_cost_of_everyone_is_one():
    records = small.batch(missing=0.0).records
    members = np.ones((small.Q, 2, small.N), bool)
    members[:, 1, M0] = False  # M0 is paid for whether it is a member or not
    for cost in ("params", "token_params"):
        got = cost_share(fakes.shape(cost=cost), records, members)
        np.testing.assert_allclose(got, 1, rtol=1e-6)


def test_supervision_goes_to_null_when_gold_is_absent():
    records = small.batch(seed=3).records
    rollout = small.random_rollout(records)
    combined = made_up(records, rollout)
    log_p = np.asarray(combination.log_probs(combined))
    value, present = combination.gold_log_prob(log_p, records.gold, combined.candidates)
    value, present = np.asarray(value), np.asarray(present)
    assert present.any() and (~present).any()
    np.testing.assert_allclose(value[~present], log_p[..., -1][~present], rtol=1e-6)
    rows, cols = np.nonzero(present)
    np.testing.assert_allclose(value[present], log_p[rows, cols, records.gold[rows]], rtol=1e-6)


@pytest.mark.parametrize("choices", [False, True])
def test_an_untrained_system_is_a_vote(choices):
    """g(c) is the number of kept agents that said c, and the answer the plurality's."""
    batch = small.batch(seed=4, choices=choices)
    records = batch.records
    rollout = small.random_rollout(records)
    got = jax.device_get(
        small.combined(small.params(), batch, small.full_memory(), small.CALIBRATION, rollout)
    )
    said = records.answers[:, None, :, None] == np.arange(small.N)  # [Q, 1, N, C]
    votes = (said & rollout.kept[..., None]).sum(2)
    np.testing.assert_allclose(got.logits[..., :-1], votes, atol=1e-5)
    np.testing.assert_allclose(got.logits[..., -1], 0, atol=1e-7)
    answer = np.asarray(combination.answer(got, records.answers, records.choices, rollout.kept))
    some = answer >= 0
    best = np.take_along_axis(votes, np.maximum(answer, 0)[..., None], -1)[..., 0]
    assert some.any() and (best == votes.max(-1))[some].all()
    assert (votes.max(-1) == 0)[~some].all()


def test_what_the_left_out_said_changes_nothing():
    """Answers and features of agents that were not asked, or were pruned, are inert."""
    batch = small.batch(seed=5, missing=0.0)
    rollout = small.random_rollout(batch.records)
    first = jax.tree.map(lambda x: x[:, :1], rollout)  # one rollout, so that its K is the only one
    rollout = jax.tree.map(lambda x: np.repeat(x, G, 1), first)
    out = ~first.kept[:, 0]
    rng = np.random.default_rng(0)
    answers = np.where(out, rng.integers(0, small.N, out.shape), batch.records.answers)
    changed = batch.replace(records=batch.records.replace(answers=answers.astype(np.int32)))
    tree = small.perturbed(small.params(), scale=0.1)
    run = lambda b: jax.device_get(  # noqa: E731
        small.combined(tree, b, small.full_memory(), small.CALIBRATION, rollout)
    )
    before, after = run(batch), run(changed)
    np.testing.assert_array_equal(before.candidates, after.candidates)
    scored = before.candidates
    np.testing.assert_array_equal(before.logits[scored], after.logits[scored])
    assert (answers != batch.records.answers).any()
    # Outside S the features are inert as well; a pruned member may still be read by others.
    silent = ~first.members[:, 0]
    features = tuple(
        np.where(silent[:, a, None], 7.0, f).astype(np.float32)
        for a, f in enumerate(batch.records.features)
    )
    after = run(batch.replace(records=batch.records.replace(features=features)))
    np.testing.assert_array_equal(before.logits[scored], after.logits[scored])
