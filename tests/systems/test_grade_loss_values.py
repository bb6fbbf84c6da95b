"""The loss's terms against NumPy written from the design, and what a step draws and reads."""

import functools
import itertools

import fakes
import jax
import numpy as np
import pytest
import small_grade as small

from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import memory as memory_lib
from gradejax.models import encoder
from gradejax.systems.grade import policy
from gradejax.systems.grade.learner import StepInput, _advantages, _recalibrate, row_keys
from gradejax.systems.grade.network import GateLogits, Question, question
from gradejax.systems.grade.objective import Counts, loss, regularisers
from gradejax.systems.questions import pad_records, unpack_trunk
from gradejax.types import Batch

A, G = small.SHAPE.pool.num_agents, small.SHAPE.config.group_size
OWNER = np.array(small.SHAPE.pool.manager_of)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, allowed):
    weights = np.where(allowed, np.exp(x - x[allowed].max()), 0.0)
    return weights / weights.sum()


def made_up_logits(seed=0, q=small.Q):
    rng = np.random.default_rng(seed)
    f = lambda *s: (1.5 * rng.normal(size=s)).astype(np.float32)  # noqa: E731
    return GateLogits(depth=f(q, 3), scores=f(q, A), read=f(q, A, A), prune=f(q, A))


def depths_allowed(available):
    """Depth 0 needs M0, the others an agent."""
    some = available[:-1].any()
    return np.array([available[-1], some, some])


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@small.quick
def _regularisers(logits, records, counts):
    found = Question(h0=None, h=None, raw=None, messages=None, logits=None, cut_logits=logits)
    return regularisers(small.SHAPE, found, records, counts)


def test_each_regulariser_has_the_value_of_its_formula():
    """λ_bal (A Σ p̃² − 1), λ_D E[ℓ]/(D − 1), λ_R mean r: unweighted, over valid questions."""
    records = small.batch(seed=3, missing=0.3).records
    valid = np.arange(small.Q) < 9
    records = records.replace(valid=valid)
    logits = made_up_logits()
    counts = Counts(rollouts=np.float32(1), questions=np.float32(valid.sum()))
    balance, depth, read = map(float, _regularisers(logits, records, counts))
    wanted = float64(logits)
    asked, depths, reads = np.zeros(A), [], []
    for i in np.flatnonzero(valid):
        there = records.available[i]
        agents = there[:-1]
        p = np.where(agents, sigmoid(wanted.scores[i]), 0.0)
        if agents.any():
            asked += p / (1 - np.prod(1 - p))  # marginals given that somebody is asked
        depths.append((softmax(wanted.depth[i], depths_allowed(there)) * [0, 1, 2]).sum())
        pairs = agents[:, None] & agents[None] & ~np.eye(A, dtype=bool)
        reads.append(sigmoid(wanted.read[i])[pairs].mean() if pairs.any() else 0.0)
    share = asked / asked.sum()
    # Twice the sum would be off by more than it is; E[ℓ] itself is twice E[ℓ]/(D − 1).
    assert balance == pytest.approx(A * (share**2).sum() - 1, rel=1e-5)
    assert depth == pytest.approx(np.mean(depths) / 2, rel=1e-5)
    assert read == pytest.approx(np.mean(reads), rel=1e-5)


def test_balance_is_zero_for_even_and_largest_for_one():
    records = small.batch(missing=0.0).records
    counts = Counts(rollouts=np.float32(1), questions=np.float32(small.Q))
    logits = made_up_logits()
    even = logits.replace(scores=np.zeros_like(logits.scores))
    assert float(_regularisers(even, records, counts)[0]) == pytest.approx(0, abs=1e-5)
    one = logits.replace(scores=np.where(np.arange(A) == 2, 20, -20).astype(np.float32)[None]
                         + np.zeros_like(logits.scores))  # fmt: skip
    assert float(_regularisers(one, records, counts)[0]) == pytest.approx(A - 1, rel=1e-4)


@functools.cache
def evaluated():
    """Parts of the loss on made-up rollouts, and what a reference needs for them."""
    shape = small.SHAPE
    batch = small.batch(seed=2, missing=0.2)
    valid_rows = np.arange(small.Q) < 10
    batch = batch.replace(records=batch.records.replace(valid=valid_rows))
    rollout = small.random_rollout(batch.records)
    valid = valid_rows[:, None] & (rollout.depth >= 0)
    rng = np.random.default_rng(0)
    advantages = rng.normal(size=valid.shape).astype(np.float32)
    counts = Counts(rollouts=np.float32(valid.sum()), questions=np.float32(valid_rows.sum()))
    tree = small.perturbed(small.params(), scale=0.1)
    memory = small.full_memory()

    @small.quick
    def run(tree):
        found = question(shape, tree, batch, memory, small.CALIBRATION, own_slots=False)
        now, free = policy.decisions(
            shape.config, shape.pool, found.logits, rollout, batch.records.available
        )
        old = now + noise
        total, parts = loss(shape, tree, batch, memory, small.CALIBRATION, rollout, old,
                            advantages, found.logits, valid, counts)  # fmt: skip
        return total, parts, free

    d = len(policy.component_of(shape.config, shape.pool))
    noise = (0.15 * rng.normal(size=(small.Q, G, d))).astype(np.float32)
    total, parts, free = jax.device_get(run(tree))
    combined = jax.device_get(small.combined(tree, batch, memory, small.CALIBRATION, rollout))
    return batch.records, valid, advantages, noise, total, parts, free, combined


def test_the_surrogate_is_the_clipped_sum_over_the_valid_rollouts():
    """−(1/N) Σ_i Σ_k min(ϱA, clip(ϱ)A): N valid rollouts, not rows, not components."""
    _, valid, advantages, noise, _, parts, free, _ = evaluated()
    component = np.array(policy.component_of(small.SHAPE.config, small.SHAPE.pool))
    eta, total = small.SHAPE.config.clip, 0.0
    for i, g in zip(*np.nonzero(valid), strict=True):
        for k in range(4):
            mine = free[i, g] & (component == k)
            if mine.any():
                ratio = np.exp(-noise[i, g][mine].astype(np.float64).sum())
                a = float(advantages[i, g])
                total += min(ratio * a, np.clip(ratio, 1 - eta, 1 + eta) * a)
    assert float(parts.policy) == pytest.approx(-total / valid.sum(), rel=1e-4)
    assert valid.sum() not in (valid.size, small.Q)


def test_the_supervised_term_is_a_cross_entropy_and_has_its_weight():
    records, valid, _, _, total, parts, _, combined = evaluated()
    null = combined.logits.shape[-1] - 1
    each = []
    for i, g in zip(*np.nonzero(valid), strict=True):
        scored = combined.candidates[i, g]
        scored = np.append(scored, True) if len(scored) == null else scored
        column = int(records.gold[i])
        column = column if column >= 0 and scored[column] else null
        p = softmax(combined.logits[i, g].astype(np.float64), scored)
        each.append(-np.log(p[column]))
    assert float(parts.supervised) == pytest.approx(np.mean(each), rel=1e-4)
    c = small.SHAPE.config
    weighted = {"policy": 1, "kl": c.kl_weight, "supervised": c.supervised_weight,
                "balance": c.balance_weight, "depth": c.depth_weight, "read": c.read_weight}
    want = sum(w * float(getattr(parts, name)) for name, w in weighted.items())
    assert float(total) == pytest.approx(want, rel=1e-5)


def test_every_weight_of_the_loss_is_the_configs():
    """Weights that are told apart by size: each term enters with its own, once."""
    names = ("kl_weight", "supervised_weight", "balance_weight", "depth_weight", "read_weight")
    values = dict(zip(names, (3.0, 5.0, 7.0, 11.0, 13.0), strict=True))
    shape = fakes.shape(**values)
    batch = small.batch(seed=2)
    rollout = small.random_rollout(batch.records)
    valid = rollout.depth >= 0
    counts = Counts(rollouts=np.float32(valid.sum()), questions=np.float32(small.Q))
    reference = small.logits(batch)
    tree = small.perturbed(small.params())
    old = np.zeros((small.Q, G, len(policy.component_of(shape.config, shape.pool))), np.float32)
    total, parts = jax.device_get(small.quick(
        lambda t: loss(shape, t, batch, small.empty_memory(), small.CALIBRATION, rollout, old,
                       valid.astype(np.float32), reference, valid, counts))(tree))  # fmt: skip
    terms = [parts.kl, parts.supervised, parts.balance, parts.depth, parts.read]
    assert all(float(t) > 1e-4 for t in terms)
    want = float(parts.policy) + sum(v * float(t) for v, t in zip(values.values(), terms,
                                                                   strict=True))  # fmt: skip
    assert float(total) == pytest.approx(want, rel=1e-5)


def set_kl(p, r, allowed):
    """KL of two Bernoulli sets given that they are not empty, by enumeration."""
    agents = np.flatnonzero(allowed)
    logs = []
    for scores in (p, r):
        on = sigmoid(scores[agents])
        chance = np.array([
            np.prod(np.where(s, on, 1 - on))
            for s in itertools.product((False, True), repeat=len(agents)) if any(s)
        ])  # fmt: skip
        logs.append(np.log(chance / chance.sum()))
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum())


def kl_reference(logits, reference, available):
    """KL_D + g_1 (KL_m + Σ_m p_m KL_A(m)) + g_2 KL_A(pool) of one question."""
    allowed = depths_allowed(available)
    g, g0 = (softmax(x.depth, allowed)[allowed] for x in (logits, reference))
    out = (g * np.log(g / g0)).sum()
    weights = softmax(logits.depth, allowed)
    agents = available[:-1]
    pools = [agents & (m == OWNER) for m in range(2)]
    there = np.array([p.any() for p in pools])
    mean = lambda x: np.array([x.scores[p].mean() if p.any() else 0.0 for p in pools])  # noqa: E731
    m, m0 = softmax(mean(logits), there), softmax(mean(reference), there)
    below = sum(m[i] * (np.log(m[i] / m0[i]) + set_kl(logits.scores, reference.scores, pools[i]))
                for i in range(2) if there[i])  # fmt: skip
    return out + weights[1] * below + weights[2] * set_kl(logits.scores, reference.scores, agents)


def test_kl_weighs_each_depth_by_its_chance_and_learns_through_it():
    """Values and slopes by every logit of depth and assignment, against enumeration."""
    records = small.batch(seed=6, missing=0.15).records
    there = records.available[:, :-1].any(1)
    logits, reference = made_up_logits(1), made_up_logits(2)
    rollout = small.random_rollout(records)
    shallow = rollout.replace(depth=np.zeros_like(rollout.depth))  # read and prune take no part
    config, pool = small.SHAPE.config, small.SHAPE.pool

    def total(x):
        got = policy.kl(config, pool, x, reference, shallow, records.available)
        return got[:, 0].sum(), got[:, 0]

    slopes, values = jax.device_get(small.quick(jax.grad(total, has_aux=True))(logits))
    mine, base = float64(logits), float64(reference)
    row = lambda tree, i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
    for i in np.flatnonzero(there)[:6]:
        at = functools.partial(kl_reference, reference=row(base, i),
                               available=records.available[i])  # fmt: skip
        assert values[i] == pytest.approx(at(row(mine, i)), rel=1e-4, abs=1e-5)
        for name in ("depth", "scores"):
            here = getattr(mine, name)[i]
            for j in range(len(here)):
                step = np.where(np.arange(len(here)) == j, 1e-5, 0.0)
                up, down = (at(row(mine, i).replace(**{name: here + s})) for s in (step, -step))
                slope = getattr(slopes, name)[i, j]
                assert slope == pytest.approx((up - down) / 2e-5, rel=2e-3, abs=2e-5), (name, i, j)


def test_a_key_for_every_question_and_step():
    key = jax.random.key(5)
    ids = np.array([0, 3, 7], np.int32)
    got = [jax.random.key_data(row_keys(key, s, ids)) for s in (0, 1, 2)]
    flat = {tuple(np.asarray(k)) for keys in got for k in keys}
    assert len(flat) == 9  # the same noise in every step would give 3
    again = jax.random.fold_in(jax.random.fold_in(key, 2), 7)
    np.testing.assert_array_equal(got[2][2], jax.random.key_data(again))


def drawn(metrics):
    names = ("depth", "agents", "kept", "edges", "reward", "advantage/abs")
    return [float(metrics[n][0]) for n in names]


def test_a_step_draws_with_its_own_number():
    inputs = small.inputs(small.batch(0))
    first = drawn(small.STEP(small.state(), inputs)[1])
    later = small.state().replace(step=np.int32(1))
    assert drawn(small.STEP(later, inputs)[1]) != first
    assert drawn(small.STEP(small.state(), inputs)[1]) == first


def test_sampling_never_reads_the_questions_own_slot():
    """One real question, whose slot alone is filled: what it holds changes no draw."""
    full = small.batch(0)
    states = unpack_trunk(full.trunk)[:1] + [np.zeros((0, 16), np.float32)] * (small.Q - 1)
    batch = Batch(pad_records(full.records.take(np.arange(1)), small.Q - 1),
                  encoder.pack_trunk(states, small.ROWS, small.LENGTH))  # fmt: skip
    tree = small.perturbed(small.params(), scale=0.5)
    empty = jax.device_get(small.empty_memory())
    rng = np.random.default_rng(0)
    s, d = empty.values.shape

    def step(own, seed):
        junk = lambda: (20 * rng.normal(size=(s, d))).astype(np.float32)  # noqa: E731
        ids = np.full_like(empty.ids, -1)
        ids[0] = batch.records.ids[0] if own else 999
        memory = memory_lib.Memory(keys=junk(), values=junk(), ids=ids, count=np.int32(1))
        state = small.state(tree=tree).replace(memory=memory)
        return drawn(small.STEP(state, StepInput(batch, small.logits(batch)))[1])

    one, two = step(True, 0), step(True, 1)
    assert one == two
    assert step(False, 2) != one  # another question's slot is read


def test_the_spread_of_a_group_is_floored_by_the_config():
    """(R − μ)/max(σ, σ_min): hundredths of cost do not become full advantages."""
    rng = np.random.default_rng(0)
    reward = (2 + 0.01 * rng.normal(size=(small.Q, G))).astype(np.float32)
    reward[::2] += rng.integers(0, 2, (small.Q // 2, G)).astype(np.float32) * 2
    valid = np.ones(reward.shape, bool)
    ids = np.arange(small.Q, dtype=np.int32)
    for floor in (0.0, 0.5):
        config = fakes.shape(std_floor=floor).config
        got, _ = _advantages(config, None, ids, reward, valid, None)
        centred = reward - reward.mean(1, keepdims=True)
        spread = np.maximum(reward.std(1, keepdims=True), floor)
        np.testing.assert_allclose(got, centred / spread, rtol=2e-3, atol=1e-4)


def test_statistics_move_by_rows_that_exist_and_are_valid():
    """A row that only fills the batch may claim to be available: its messages count nowhere."""
    records = small.batch(0, missing=0.3).records
    valid = np.arange(small.Q) < 8
    records = records.replace(valid=valid, available=records.available | ~valid[:, None])
    d = small.SHAPE.config.d
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(small.Q, small.N, d)).astype(np.float32)
    raw[~valid] = 1e4
    raw[:, 0][~records.available[:, 0]] = 1e4
    state = small.state().replace(calibration=calibration_lib.identity(small.N, d))
    config = small.SHAPE.config
    got = jax.device_get(_recalibrate(config, state, raw, records, None))
    alpha = config.calibration_momentum
    for a in range(small.N):
        rows = raw[records.available[:, a] & valid, a].astype(np.float64)
        np.testing.assert_allclose(got.mean[a], alpha * rows.mean(0), atol=1e-5)
        want = 1 - alpha + alpha * rows.std(0)
        np.testing.assert_allclose(got.sigma[a], want, atol=1e-5)
