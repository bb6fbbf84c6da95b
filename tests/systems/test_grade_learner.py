"""The training step: where it starts, what is inert in it, what it remembers, that it learns."""

import functools
import hashlib

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_grade as small

from gradejax.models import encoder
from gradejax.models.decoder import Decoder
from gradejax.objectives.advantages import group_relative
from gradejax.systems.grade import fit, infer, policy
from gradejax.systems.grade.learner import StepInput, _advantages, train_step
from gradejax.systems.grade.network import Shape, question
from gradejax.systems.grade.objective import Counts, loss
from gradejax.systems.questions import pad_records, unpack_trunk
from gradejax.types import Batch


@functools.cache
def one_step(seed=0, key=1):
    """(state, metrics) after one step from the common start, on the host."""
    return jax.device_get(small.STEP(small.state(key), small.inputs(small.batch(seed))))


def assert_same(a, b):
    key = jnp.zeros(())
    jax.tree.map(np.testing.assert_array_equal, a.replace(key=key), b.replace(key=key))


def test_metrics_of_the_first_step():
    state, metrics = one_step()
    means = {k: float(s) / float(n) for k, (s, n) in metrics.items() if n}
    assert all(np.isfinite(v) for v in means.values())
    parts = ("correctness", "system", "agents", "cost")
    assert sum(means[f"reward/{p}"] for p in parts) == pytest.approx(means["reward"], abs=1e-5)
    assert sum(means[f"depth/{level}"] for level in range(3)) == pytest.approx(1)
    assert means["manager/left"] + means["manager/right"] == pytest.approx(1)
    assert means["usage/A1"] <= 1 and means["agents"] >= 1
    assert float(metrics["reward"][1]) == small.Q * small.SHAPE.config.group_size
    # The last of two inner epochs has left the sampling policy, so it differs from π_ref by now.
    assert means["loss/kl"] > 0 and int(state.step) == 1
    config = small.SHAPE.config
    total = (means["loss/policy"] + config.kl_weight * means["loss/kl"] + means["loss/supervised"]
             + config.balance_weight * means["loss/balance"] + config.depth_weight
             * means["loss/depth"] + config.read_weight * means["loss/read"])  # fmt: skip
    assert means["loss"] == pytest.approx(total, rel=1e-5)


def test_first_epoch_is_on_policy_and_the_second_is_not():
    """Ratio 1 and KL 0 on unchanged weights, exactly; both move once the weights have."""
    shape, batch = small.SHAPE, small.batch(0)
    rollout = small.random_rollout(batch.records)
    valid = rollout.depth >= 0
    advantages = np.random.default_rng(0).normal(size=valid.shape).astype(np.float32)
    counts = Counts(rollouts=np.float32(valid.sum()), questions=np.float32(small.Q))

    @small.quick
    def parts(tree, start):
        found = question(shape, start, batch, small.empty_memory(), small.CALIBRATION,
                         own_slots=False)  # fmt: skip
        old, _ = policy.decisions(
            shape.config, shape.pool, found.logits, rollout, batch.records.available
        )
        return loss(shape, tree, batch, small.empty_memory(), small.CALIBRATION, rollout, old,
                    advantages, found.logits, valid, counts)[1]  # fmt: skip

    start = small.params()
    first = jax.device_get(parts(start, start))
    # the pass that samples and the one that learns are compiled apart: equal but for rounding
    assert float(first.stats.max_abs_log_ratio) < 1e-6 and float(first.kl) < 1e-6
    np.testing.assert_allclose(first.stats.ratio_sum, first.stats.count, rtol=1e-6)
    assert not first.stats.clipped.any() and first.stats.count.all()
    second = jax.device_get(parts(one_step()[0].params, start))
    assert float(second.stats.max_abs_log_ratio) > 1e-4 and float(second.kl) > 0


def test_one_compilation_for_all_batches():
    state = small.state()
    state, _ = small.STEP(state, small.inputs(small.batch(0)))
    before = small.TRACES["count"]
    for seed in range(1, 4):
        state, _ = small.STEP(state, small.inputs(small.batch(seed, missing=0.2 * seed)))
    assert small.TRACES["count"] == before == 1


def test_same_key_same_result():
    again = jax.device_get(small.STEP(small.state(), small.inputs(small.batch(0))))
    assert_same(again[0], one_step()[0])
    np.testing.assert_array_equal(again[1].values, one_step()[1].values)
    other, _ = one_step(key=2)
    assert any((a != b).any() for a, b in zip(
        jax.tree.leaves(other.params), jax.tree.leaves(again[0].params), strict=True))  # fmt: skip


def test_a_step_donates_its_state_and_leaves_the_frozen_trunk():
    frozen = small.quick(lambda: fakes.trunk_params())()
    digest = lambda: hashlib.sha256(  # noqa: E731
        b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(frozen))).hexdigest()  # fmt: skip
    before, state = digest(), small.state()
    top = encoder.top_params(Decoder(fakes.TRUNK), frozen)  # a copy, or the step would eat it
    state = state.replace(params=state.params.replace(encoder=top))
    given = jax.tree.leaves(state.params)
    new, _ = small.STEP(state, small.inputs(small.batch(0)))
    assert any(x.is_deleted() for x in given)
    assert digest() == before
    now = encoder.top_params(Decoder(fakes.TRUNK), frozen)
    for trained, start in zip(*map(jax.tree.leaves, (new.params.encoder, now)), strict=True):
        assert (trained != start).any()


def padded(seed=0, real=10):
    """``real`` questions and two padding rows, in the common shape."""
    full = small.batch(seed)
    states = unpack_trunk(full.trunk)[:real] + [np.zeros((0, 16), np.float32)] * (small.Q - real)
    return Batch(
        pad_records(full.records.take(np.arange(real)), small.Q - real),
        encoder.pack_trunk(states, small.ROWS, small.LENGTH),
    )


def test_padding_rows_are_inert():
    clean = padded()
    rng = np.random.default_rng(0)
    r = clean.records
    rows = np.arange(small.Q) >= 10

    def spoil(x, junk):
        return np.where(rows.reshape((-1,) + (1,) * (x.ndim - 1)), junk, x).astype(x.dtype)

    dirty = clean.replace(records=r.replace(
        features=tuple(spoil(f, np.nan) for f in r.features),
        answers=spoil(r.answers, rng.integers(0, small.N, r.answers.shape)),
        candidates=spoil(r.candidates, np.nan), gold=spoil(r.gold, 1),
        tokens=spoil(r.tokens, 999), family=spoil(r.family, 2), ids=spoil(r.ids, 7),
    ))  # fmt: skip
    got = [jax.device_get(small.STEP(small.state(), StepInput(b, small.logits(clean))))
           for b in (clean, dirty)]  # fmt: skip
    assert_same(got[0][0], got[1][0])
    np.testing.assert_array_equal(got[0][1].values, got[1][1].values)
    group = small.SHAPE.config.group_size
    assert float(got[0][1]["reward"][1]) == 10 * group
    assert (got[0][0].memory.ids >= 0).sum() <= 10


def test_what_a_missing_agent_would_have_said_is_inert():
    batch = small.batch(0, missing=0.4)
    r = batch.records
    rng = np.random.default_rng(0)
    gone = ~r.available
    assert gone[:, :-1].any() and gone[:, -1].any()
    dirty = batch.replace(records=r.replace(
        features=tuple(np.where(gone[:, a, None], np.nan, f).astype(np.float32)
                       for a, f in enumerate(r.features)),
        answers=np.where(gone, rng.integers(0, small.N, gone.shape), r.answers).astype(np.int32),
    ))  # fmt: skip
    reference = small.logits(batch)
    got = [jax.device_get(small.STEP(small.state(), StepInput(b, reference)))
           for b in (batch, dirty)]  # fmt: skip
    assert_same(got[0][0], got[1][0])


def test_memory_never_holds_gold():
    batch = small.batch(0)
    wrong = batch.replace(
        records=batch.records.replace(gold=np.roll(batch.records.gold, 1).astype(np.int32))
    )
    state, _ = small.STEP(small.state(), small.inputs(wrong))
    mine, _ = one_step()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.memory), mine.memory)
    assert (mine.memory.ids >= 0).sum() > 6 and mine.memory.values.any()
    assert any((np.asarray(a) != b).any() for a, b in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(mine.params), strict=True))  # fmt: skip


def test_statistics_move_by_momentum():
    """μ̂ and σ̂ go α of the way to the batch's, over everyone whose features exist."""
    batch, state = small.batch(0), one_step()[0]
    r = batch.records
    for a in range(small.N):
        dense = small.params().network["params"]["adapters"][f"agent_{a}"]
        messages = r.features[a][r.available[:, a]] @ dense["kernel"] + dense["bias"]
        np.testing.assert_allclose(state.calibration.mean[a], 0.05 * messages.mean(0), atol=2e-6)
        want = 0.95 + 0.05 * messages.std(0)
        np.testing.assert_allclose(state.calibration.sigma[a], want, atol=2e-6)


def accuracy(state, batch):
    got = infer.infer(small.SHAPE, state.params, batch, state.memory, state.calibration)
    return float((np.asarray(got.answer) == batch.records.gold).mean()), got


def test_it_learns_who_masters_which_family():
    """A vote gets families 0 and 1; who answers family 2 (one agent) must be learned."""
    test = fakes.batch(300, seed=999, rows=150, row_length=small.LENGTH)
    before, _ = accuracy(small.state(), test)
    state = small.state()
    for step in range(LEARN_STEPS):
        state, metrics = small.STEP(state, small.inputs(small.batch(step, missing=0.0)))
    after, got = accuracy(state, test)
    assert before < 0.75 and after > 0.85  # .67 and .95
    alone = np.mean(test.records.answers == test.records.gold[:, None], axis=0).max()
    assert after > alone + 0.3
    asked = np.asarray(got.asked)[test.records.family == 2]
    assert asked[:, 5].mean() > 0.8  # B3, the only one who knows family 2


LEARN_STEPS = 100


VARIANTS = {
    "fixed_k": {"fixed_k": 2, "ratio": "decision", "baseline": "ema", "cost": "token_params"},
    "concrete": {"read_relaxation": "concrete", "read_mask": "multiplicative", "scale": "none",
                 "baseline": "batch", "max_grad_norm": 0.5, "inner_epochs": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", list(VARIANTS))
def test_variants_run_finite_and_move_everything(name):
    shape = fakes.shape(**VARIANTS[name])
    step = small.quick(functools.partial(train_step, shape))
    state = start = small.state(shape=shape)
    for seed in range(2):
        state, metrics = step(state, small.inputs(small.batch(seed, missing=0.3)))
    assert np.isfinite(metrics.values).all()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        assert np.isfinite(leaf).all(), path
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, start.params)
    gates = moved.network["params"]
    # A relaxed edge is learned through the answer alone, and not scored.
    assert all(jax.tree.leaves([gates[n] for n in ("depth", "assignment", "prune", "read")]))
    means = {k: float(s) / float(n) for k, (s, n) in metrics.items() if n}
    assert 0 <= means["cost"] <= 1 and means["loss/kl"] > 0
    if name == "fixed_k":
        assert means["agents"] <= 2


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch", "ema", "none"])
def test_baselines(baseline):
    """The step's advantages are those of the id-keyed estimator."""
    shape = fakes.shape(baseline=baseline)
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(small.Q, 8)).astype(np.float32)
    reward[3] = 1.5
    valid = np.ones((small.Q, 8), bool)
    valid[-2:] = False
    ids = np.arange(small.Q)[::-1] * 5
    state = small.state().replace(ema=jnp.float32(0.4))
    run = small.quick(lambda r, v: _advantages(shape.config, state, ids, r, v, None)[0])
    got = np.asarray(run(reward, valid))
    want, _ = group_relative(
        reward.ravel(), np.repeat(ids, 8), valid.ravel(), num_groups=small.Q, baseline=baseline,
        std_floor=0.5, ema=0.4 if baseline == "ema" else None,
    )  # fmt: skip
    np.testing.assert_allclose(got.ravel(), want, atol=1e-6)
    assert not got[-2:].any() and got[0].any()
    if baseline in ("group_mean", "leave_one_out"):
        assert not got[3].any()


def test_share_of_advantage_from_unvarying_groups():
    """With σ_min = 0 it is what the groups without a difference in correctness contribute."""
    _, metrics = one_step()
    share, total = metrics["advantage/from_unvarying"]
    assert 0 <= share <= total and total == metrics["advantage/abs"][0]
    silent = small.batch(0).replace(
        records=small.batch(0).records.replace(gold=np.full(small.Q, -1, np.int32))
    )  # nothing can be right, so every group is unvarying
    _, metrics = small.STEP(small.state(), small.inputs(silent))
    share, total = metrics["advantage/from_unvarying"]
    assert share == pytest.approx(float(total), rel=1e-6) and total > 0
    assert float(metrics["accuracy"][0]) == 0


def test_blank_rollout_has_the_shapes_of_a_drawn_one():
    for options in ({}, {"fixed_k": 2}, {"read_relaxation": "concrete"}):
        shape: Shape = fakes.shape(**options)
        blank = fit.blank_rollout(shape, small.Q)
        drawn = jax.eval_shape(
            lambda *x, s=shape: policy.sample(s.config, s.pool, *x, s.config.group_size),
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), small.Q)),
            small.logits(small.batch(0)), small.batch(0).records.available,
        )  # fmt: skip
        jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail(str(b)),
                     blank, drawn)  # fmt: skip
