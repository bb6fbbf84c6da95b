"""Decisions without sampling: who is asked before anyone is, what is inert, who stands in."""

import functools

import jax
import numpy as np
import pytest
import small_grade as small

from gradejax.systems.grade import infer as lib
from gradejax.systems.grade import policy
from gradejax.systems.grade.learner import row_keys

M0 = small.N - 1
DEPTH_BIAS = (9, 8, -2)  # cancels what these logits average


@pytest.fixture(scope="module", autouse=True)
def compiled_fast():
    """These functions are jitted where they are defined; the switch is for all of them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def tree():
    """Gates moved far enough that all depths occur, and keeping is a close call."""
    tree = small.perturbed(small.params(), seed=5, scale=0.25)
    out = tree.network["params"]["depth"]["mlp"]["out"]
    out["kernel"], out["bias"] = out["kernel"] * 5, np.array(DEPTH_BIAS, np.float32)
    out = tree.network["params"]["prune"]["mlp"]["out"]
    out["kernel"], out["bias"] = out["kernel"] * 0.2, np.full_like(out["bias"], -0.9)  # v ~ .38
    gate = tree.network["params"]["assignment"]
    gate["agents"] = gate["agents"] * 0.3  # sets of several agents
    return tree


def run(batch, decision="threshold", key=None, **options):
    return jax.device_get(
        lib.infer(small.SHAPE, tree(), batch, small.full_memory(), small.CALIBRATION,
                  decision=decision, key=key, **options)
    )  # fmt: skip


def plan(batch):
    return jax.device_get(
        lib.plan(small.SHAPE, tree(), batch, small.full_memory(), small.CALIBRATION)
    )


def with_records(batch, **changes):
    return batch.replace(records=batch.records.replace(**changes))


def test_the_plan_is_what_inference_does():
    """plan() sees no expert's features, answers or tokens, and decides the same."""
    depths = set()
    for seed in range(4):
        batch = small.batch(seed, missing=0.2)
        full = run(batch)
        r = batch.records
        blind = with_records(
            batch, features=tuple(np.zeros_like(f) for f in r.features),
            answers=np.full_like(r.answers, -1), candidates=np.zeros_like(r.candidates),
            candidate_mask=np.zeros_like(r.candidate_mask), tokens=np.zeros_like(r.tokens),
            gold=np.full_like(r.gold, -1),
        )  # fmt: skip
        first = plan(blind)
        np.testing.assert_array_equal(first.depth, full.depth)
        np.testing.assert_array_equal(first.manager, full.manager)
        np.testing.assert_array_equal(first.members, full.asked)
        depths |= set(full.depth.tolist())
    assert depths == {0, 1, 2}


def test_only_the_asked_matter():
    """Garbage from everyone not asked changes nothing; the asked ones' records are enough."""
    batch = small.batch(17, missing=0.0)
    before = run(batch)
    r, out = batch.records, ~before.asked
    rng = np.random.default_rng(0)
    assert out.any(1).all()
    noisy = with_records(
        batch,
        features=tuple(np.where(out[:, a, None], np.float32(9), f)
                       for a, f in enumerate(r.features)),
        answers=np.where(out, rng.integers(0, small.N, out.shape), r.answers).astype(np.int32),
    )  # fmt: skip
    after = run(noisy)
    for name in ("answer", "asked", "depth", "manager", "read", "kept", "cost", "weights"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name), err_msg=name)
    np.testing.assert_array_equal(before.probability, after.probability)
    # A pruned agent's answer is inert as well.
    pruned = before.asked & ~before.kept
    assert pruned.any()
    said = np.where(pruned, (r.answers + 1) % small.N, r.answers).astype(np.int32)
    np.testing.assert_array_equal(run(with_records(batch, answers=said)).answer, before.answer)


def test_probability_and_cost():
    got = run(small.batch(1, missing=0.2))
    assert ((got.answer >= 0) == (got.probability > 0)).all() and (got.probability <= 1).all()
    price = np.array(small.SHAPE.pool.params)
    paid = got.asked.copy()
    paid[:, M0] = True
    np.testing.assert_allclose(got.cost, (paid * price).sum(1) / price.sum(), rtol=1e-6)
    assert not got.weights[~got.kept].any() and (got.kept <= got.asked).all()


def test_someone_else_stands_in():
    """A call that failed: the next best is asked, then another depth, in the end nobody."""
    batch = small.batch(1, missing=0.0)
    first = plan(batch)
    asked = first.members & (first.depth > 0)[:, None]
    gone = asked.copy()
    gone[:, M0] = False
    rest = with_records(batch, available=batch.records.available & ~gone)
    second = plan(rest)
    assert not (second.members & gone).any()
    assert second.members.any(1).all() and (asked.any(1) & (second.depth > 0)).any()
    alone = np.zeros_like(gone)
    alone[:, M0] = True
    third = run(with_records(batch, available=alone))
    assert (third.depth == 0).all() and (third.asked == alone).all()
    np.testing.assert_array_equal(third.answer, batch.records.answers[:, M0])
    none = run(with_records(batch, available=np.zeros_like(gone)))
    assert (none.answer == -1).all() and (none.depth == -1).all() and not none.asked.any()
    assert not none.probability.any()
    # Without M0 an agent must be asked, whatever the depth gate prefers.
    agents = batch.records.available.copy()
    agents[:, M0] = False
    assert (plan(with_records(batch, available=agents)).depth > 0).all()


def test_threshold_mode_and_sampled():
    batch = small.batch(5)
    threshold, mode = run(batch), run(batch, "mode")
    np.testing.assert_array_equal(threshold.asked, mode.asked)
    np.testing.assert_array_equal(threshold.depth, mode.depth)
    np.testing.assert_array_equal(threshold.read, mode.read)
    # τ^P = .35 keeps at least what one half keeps; .35 ≤ v < .5 is where they differ.
    assert (threshold.kept >= mode.kept).all() and (threshold.kept != mode.kept).any()
    v = 1 / (1 + np.exp(-threshold.logits.prune))
    more = (threshold.kept & ~mode.kept)[:, :-1]
    assert (v[more] >= 0.35).all()

    key = jax.random.key(4)
    sampled = run(batch, "sampled", key)
    again = run(batch, "sampled", key)
    jax.tree.map(np.testing.assert_array_equal, sampled, again)
    assert (sampled.asked != mode.asked).any()
    keys = row_keys(key, np.int32(0), batch.records.ids)
    drawn = policy.sample(small.SHAPE.config, small.SHAPE.pool, keys, sampled.logits,
                          batch.records.available, 1)  # fmt: skip
    np.testing.assert_array_equal(drawn.members[:, 0], sampled.asked)
    np.testing.assert_array_equal(drawn.depth[:, 0], sampled.depth)
    with pytest.raises(ValueError, match="unknown decision 'best'; choose from threshold, mode"):
        run(batch, "best")


def test_own_slots_are_hidden_in_training_only():
    batch = small.batch(0)  # ids 0 to 11 have slots in the memory
    logits = functools.partial(lib.gate_logits, small.SHAPE, tree(), batch)
    memory = small.full_memory()
    hidden = logits(memory, small.CALIBRATION)
    seen = logits(memory, small.CALIBRATION, own_slots=True)
    assert (np.abs(hidden.depth - seen.depth) > 1e-6).any()
    np.testing.assert_array_equal(seen.depth, run(batch).logits.depth)
    changed = memory.replace(values=memory.values + np.where(
        np.isin(memory.ids, batch.records.ids[:1])[:, None], 5, 0).astype(np.float32))  # fmt: skip
    again = logits(changed, small.CALIBRATION)
    np.testing.assert_array_equal(again.depth[0], hidden.depth[0])
    assert (again.depth[1:] != hidden.depth[1:]).any()
