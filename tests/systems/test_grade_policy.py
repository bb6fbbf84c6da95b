"""Decisions against the enumeration of every rollout of a small pool."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_grade import quick

from gradejax.objectives.surrogates import clipped_surrogate, log_ratios
from gradejax.systems.grade import policy
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.network import GateLogits
from gradejax.systems.grade.policy import COMPONENTS, Rollout
from gradejax.types import Pool

A = 3
POOL = Pool(
    agents=("A1", "A2", "B1"), managers=("a", "b"), manager_of=(0, 0, 1), params=(1, 1, 1, 1),
    widths=(4, 4, 4, 4), candidate_width=4, trunk_width=4,
)  # fmt: skip
# Who is there: everyone, one agent missing, one left, no M0, a manager without anybody, nobody.
AVAILABLE = np.array(
    [[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 1],
     [0, 0, 0, 0], [0, 0, 1, 1]], bool,
)  # fmt: skip
Q = len(AVAILABLE)
MOST = 492  # rollouts with everyone there: 1 + 4 + 3 + 3·(4·3) + 64·7


def subsets(members):
    members = list(members)
    sizes = range(1, len(members) + 1)
    return [c for n in sizes for c in itertools.combinations(members, n)]


@functools.cache
def rollouts(row, fixed_k=0):
    """Every (depth, manager, order or set, edges, kept) that can happen, in plain Python."""
    there = [a for a in range(A) if AVAILABLE[row, a]]
    draws = (lambda m: subsets(m)) if not fixed_k else (
        lambda m: list(itertools.permutations(m, min(fixed_k, len(m)))))  # fmt: skip
    found = []
    if AVAILABLE[row, A]:
        found.append((0, -1, (), (), ()))
    for manager in range(2):
        own = [a for a in there if POOL.manager_of[a] == manager]
        found += [(1, manager, s, (), s) for s in (draws(own) if own else [])]
    for s in draws(there) if there else []:
        pairs = list(itertools.permutations(sorted(s), 2))
        for on in itertools.product((0, 1), repeat=len(pairs)):
            edges = tuple(p for p, o in zip(pairs, on, strict=True) if o)
            found += [(2, -1, s, edges, k) for k in subsets(sorted(s))]
    return found


def as_arrays(fixed_k=0):
    """All rollouts of all availabilities [Q, MOST]; padding has depth −1."""
    k = fixed_k or 1
    out = {
        "depth": np.full((Q, MOST), -1, np.int32), "manager": np.full((Q, MOST), -1, np.int32),
        "asked": np.zeros((Q, MOST, A), bool), "order": np.full((Q, MOST, k), -1, np.int32),
        "edges": np.zeros((Q, MOST, A, A), bool), "members": np.zeros((Q, MOST, A + 1), bool),
        "kept": np.zeros((Q, MOST, A + 1), bool),
    }  # fmt: skip
    real = np.zeros((Q, MOST), bool)
    for row in range(Q):
        for i, (depth, manager, s, edges, kept) in enumerate(rollouts(row, fixed_k)):
            real[row, i] = True
            out["depth"][row, i], out["manager"][row, i] = depth, manager
            out["asked"][row, i, list(s)] = True
            if fixed_k:
                out["order"][row, i, : len(s)] = s
            for reader, read in edges:
                out["edges"][row, i, reader, read] = True
            out["members"][row, i, list(s) if depth else [A]] = True
            out["kept"][row, i, list(kept) if depth else [A]] = True
    if not fixed_k:
        out["order"] = None
    return Rollout(relaxed=None, **out), real


def draw_logits(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    n = lambda *s: rng.normal(size=(Q, *s)) * scale  # noqa: E731
    return GateLogits(depth=n(3), scores=n(A), read=n(A, A), prune=n(A))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def nonempty(chosen, logits, allowed):
    """P(set) among the non-empty ones, from the definition."""
    p = sigmoid(logits)
    on = np.prod([p[i] if i in chosen else 1 - p[i] for i in allowed])
    return on / (1 - np.prod([1 - p[i] for i in allowed]))


def chance(row, rollout, logits, fixed_k=0):
    """π of one rollout, written from the design."""
    depth, manager, s, edges, kept = rollout
    there = [a for a in range(A) if AVAILABLE[row, a]]
    levels = [0] * bool(AVAILABLE[row, A]) + [1, 2] * bool(there)
    weight = np.exp(logits.depth[row])
    value = weight[depth] / weight[levels].sum()
    scores = logits.scores[row]
    pool = there
    if depth == 0:
        return value
    if depth == 1:
        owned = {m: [a for a in there if POOL.manager_of[a] == m] for m in range(2)}
        means = {m: np.exp(scores[own].mean()) for m, own in owned.items() if own}
        value *= means[manager] / sum(means.values())
        pool = owned[manager]
    if fixed_k:
        left = list(pool)
        for a in s:
            value *= np.exp(scores[a]) / np.exp(scores[left]).sum()
            left.remove(a)
    else:
        value *= nonempty(s, scores, pool)
    if depth == 2:
        for a, b in itertools.permutations(s, 2):
            p = sigmoid(logits.read[row, a, b])
            value *= p if (a, b) in edges else 1 - p
        value *= nonempty(kept, logits.prune[row], s)
    return value


def chances(logits, fixed_k=0):
    out = np.zeros((Q, MOST))
    for row in range(Q):
        for i, r in enumerate(rollouts(row, fixed_k)):
            out[row, i] = chance(row, r, logits, fixed_k)
    return out


@functools.cache
def scorer(fixed_k=0, relaxation="hard"):
    config = GradeConfig(fixed_k=fixed_k, read_relaxation=relaxation)

    def run(logits, reference, rollout):
        log_probs, free = policy.decisions(config, POOL, logits, rollout, AVAILABLE)
        return log_probs, free, policy.kl(config, POOL, logits, reference, rollout, AVAILABLE)

    return quick(run)


@pytest.mark.parametrize("fixed_k", [0, 2])
def test_every_rollout_has_its_probability(x64, fixed_k):
    rollout, real = as_arrays(fixed_k)
    if not fixed_k:
        assert real[0].sum() == MOST
    logits, reference = draw_logits(0), draw_logits(1)
    log_probs, free, kl = scorer(fixed_k)(logits, reference, rollout)
    total = np.asarray(log_probs).sum(-1)
    want = chances(logits, fixed_k)
    np.testing.assert_allclose(np.exp(total)[real], want[real], rtol=1e-10)
    some = real.any(1)
    np.testing.assert_allclose((np.exp(total) * real).sum(1)[some], 1, rtol=1e-12)
    assert not some[6] and not np.asarray(free)[6].any()  # nobody there: nothing to decide
    assert not np.asarray(log_probs)[~np.asarray(free)].any()
    # What is left of the tree's KL after its prefix is exact: averaged, it is the KL of rollouts.
    ratio = np.log(want[real]) - np.log(chances(reference, fixed_k)[real])
    tree = np.zeros_like(want)
    tree[real] = want[real] * ratio
    np.testing.assert_allclose((want * np.asarray(kl) * real).sum(1), tree.sum(1), atol=1e-11)
    assert (np.asarray(kl)[real] >= 0).all()
    same = scorer(fixed_k)(logits, logits, rollout)[2]
    assert not np.asarray(same).any()


def test_one_agent_left_is_no_decision(x64):
    """Row 2: one agent and no M0. Depth 1 and 2 differ, nothing else is open."""
    rollout, real = as_arrays()
    _, free, _ = scorer()(draw_logits(0), draw_logits(1), rollout)
    assert real[2].sum() == 2 and np.asarray(free)[2, :2].sum(-1).tolist() == [1, 1]


@pytest.mark.parametrize("fixed_k", [0, 2])
def test_the_sampler_draws_what_is_scored(fixed_k):
    g = 20000
    logits = jax.tree.map(lambda x: x.astype(np.float32), draw_logits(3))
    config = GradeConfig(fixed_k=fixed_k)
    run = quick(lambda *x: policy.sample(config, POOL, *x, g))
    keys = jax.random.split(jax.random.key(0), Q)
    drawn = jax.device_get(run(keys, logits, AVAILABLE))
    assert not (drawn.asked & ~AVAILABLE[:, None, :A]).any()
    assert not (drawn.members & ~AVAILABLE[:, None]).any()
    assert not (drawn.kept & ~drawn.members).any()
    assert (drawn.depth[6] == -1).all() and not drawn.members[6].any()
    want = chances(draw_logits(3), fixed_k)
    every, real = as_arrays(fixed_k)
    for row in range(Q):
        count = real[row].sum()
        if not count:
            continue
        key, codes = _codes(drawn, row), _codes(every, row)[:count]
        counts = np.array([(key == c).sum() for c in codes])
        assert counts.sum() == g, "a rollout was drawn that cannot happen"
        expected = g * want[row, :count]
        rare = expected < 5
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        counts, expected = counts[expected > 0], expected[expected > 0]
        if len(counts) > 1:
            chi = ((counts - expected) ** 2 / expected).sum()
            assert stats.chi2.sf(chi, len(counts) - 1) > 1e-4, f"row {row}: {chi}"
    # A question's draws depend on its key, not on its place.
    order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
    moved = run(keys[order], jax.tree.map(lambda x: x[order], logits), AVAILABLE[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[order]), moved, drawn)


def _codes(r, row):
    """One integer for each rollout of a row."""
    order = r.asked[row].astype(np.int64) if r.order is None else r.order[row].astype(np.int64) + 1
    digits = [
        (r.depth[row] + 1)[:, None], (r.manager[row] + 1)[:, None], order,
        r.edges[row].reshape(len(order), -1), r.kept[row],
    ]  # fmt: skip
    digits = np.concatenate(digits, -1).astype(np.int64)
    return digits @ 4 ** np.arange(digits.shape[-1])


def test_depth_gradient_is_that_of_the_expected_reward(x64):
    """Dividing by how many components took part prefers depth 0 where depth 2 pays best.

    Rewards .7, 0, .9 by depth, three equal depths, so J = .533 and A = .167, −.533, .367. Right:
    g_l = A_l/3 = .056, −.178, .122. The fault weighs depth 0 (one component) 1, depth 1 ½, depth 2
    ½ or ¼: .054, −.091, .037.
    """
    rollout, real = as_arrays()
    logits = draw_logits(2)
    logits = logits.replace(depth=np.zeros((Q, 3)))
    reward = np.array([0.7, 0.0, 0.9])[np.maximum(rollout.depth, 0)]
    pi = np.where(real, chances(logits), 0)
    advantage = pi * (reward - (pi * reward).sum(1, keepdims=True))

    @quick
    def gradients(depth):
        config = GradeConfig()

        def ratios(depth):
            log_probs, free = policy.decisions(
                config, POOL, logits.replace(depth=depth), rollout, AVAILABLE
            )
            flat = lambda x: x.reshape(Q * MOST, -1)  # noqa: E731
            return log_ratios(
                flat(log_probs), flat(jax.lax.stop_gradient(log_probs)),
                flat(free & real[..., None]), policy.component_of(config, POOL),
                num_components=len(COMPONENTS),
            )  # fmt: skip

        def surrogate(depth, divide):
            ratio, part = ratios(depth)
            share = jnp.asarray(advantage.reshape(-1, 1))
            share = share / jnp.maximum(part.sum(-1, keepdims=True), 1) if divide else share
            share = jnp.broadcast_to(share, part.shape)
            return -clipped_surrogate(ratio, share, part, clip_low=0.2, clip_high=0.2,
                                      denominator=jnp.ones(()))[0]  # fmt: skip

        return jax.grad(surrogate)(depth, False), jax.grad(surrogate)(depth, True)

    right, fault = gradients(logits.depth)
    np.testing.assert_allclose(right[0], [0.0556, -0.1778, 0.1222], atol=1e-4)
    # The expected reward itself, differentiated by hand: π_l (R_l − J) on every row's own depths.
    for row in range(Q):
        levels = [0] * bool(AVAILABLE[row, A]) + [1, 2] * bool(AVAILABLE[row, :A].any())
        want = np.zeros(3)
        if levels:
            r = np.array([0.7, 0.0, 0.9])[levels]
            want[levels] = (r - r.mean()) / len(levels)
        np.testing.assert_allclose(right[row], want, atol=1e-12)
    assert int(np.argmax(right[0])) == 2 and int(np.argmax(fault[0])) == 0
    # By hand: each rollout's advantage over the components that took part in it.
    share = np.zeros(3)
    for i, (level, _, s, _, _) in enumerate(rollouts(0)):
        parts = 1 + (level > 0) + 2 * (level == 2 and len(s) > 1)
        share[level] += advantage[0, i] / parts
    np.testing.assert_allclose(fault[0], share - share.sum() / 3, atol=1e-12)
    np.testing.assert_allclose(fault[0], [0.0537, -0.0908, 0.0371], atol=1e-4)


def test_concrete_edges_are_not_scored(x64):
    rollout, real = as_arrays()
    logits, reference = draw_logits(0), draw_logits(1)
    hard, soft = (scorer(0, r)(logits, reference, rollout) for r in ("hard", "concrete"))
    read = slice(2 + A, 2 + A + A * A)
    assert np.asarray(hard[1])[..., read].any() and not np.asarray(soft[1])[..., read].any()
    np.testing.assert_allclose(
        hard[0].sum(-1) - soft[0].sum(-1), hard[0][..., read].sum(-1), atol=1e-12
    )
    # Its KL leaves the edges out; equal read logits make the two the same.
    level = reference.replace(read=logits.read)
    np.testing.assert_allclose(scorer()(logits, level, rollout)[2], soft[2], atol=1e-12)
    assert (np.asarray(hard[2] - soft[2])[real] >= -1e-12).all()


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_relaxed_edges_round_to_the_hard_ones(temperature):
    logits = jax.tree.map(lambda x: x.astype(np.float32), draw_logits(5))
    config = GradeConfig(read_relaxation="concrete", read_temperature=temperature)
    keys = jax.random.split(jax.random.key(1), Q)
    drawn = quick(lambda k: policy.sample(config, POOL, k, logits, AVAILABLE, 64))(keys)
    relaxed, edges = np.asarray(drawn.relaxed), np.asarray(drawn.edges)
    np.testing.assert_array_equal(relaxed > 0.5, edges)
    deep = np.asarray(drawn.asked) & (np.asarray(drawn.depth) == 2)[..., None]
    pairs = deep[..., :, None] & deep[..., None, :] & ~np.eye(A, dtype=bool)
    assert not relaxed[~pairs].any() and edges.any() and (relaxed[pairs] > 0).all()


def test_decisions_without_chance():
    """The likeliest depth, manager and set; at τ^P = ½ the mode of π, at .35 at least as many."""
    logits = jax.tree.map(lambda x: x.astype(np.float32), draw_logits(4))
    made = {}
    for tau in (0.35, 0.5):
        run = quick(lambda x, t=tau: policy.decide(GradeConfig(), POOL, x, AVAILABLE,
                                                   prune_threshold=t))  # fmt: skip
        made[tau] = jax.device_get(run(logits))
    for row in range(Q):
        levels = [0] * bool(AVAILABLE[row, A]) + [1, 2] * bool(AVAILABLE[row, :A].any())
        depth = max(levels, key=lambda level: logits.depth[row, level], default=-1)
        assert made[0.5].depth[row, 0] == depth
        if depth <= 0:
            continue
        found = [r for r in rollouts(row) if r[0] == depth]
        sets = [r for r in found if r[1] == made[0.5].manager[row, 0]]
        own = np.flatnonzero(np.any([np.isin(np.arange(A), r[2]) for r in sets], axis=0))
        best = max({r[2] for r in sets}, key=lambda s: nonempty(s, logits.scores[row], own))
        assert np.flatnonzero(made[0.5].asked[row, 0]).tolist() == sorted(best)
        if depth == 2:
            np.testing.assert_array_equal(made[0.35].asked[row], made[0.5].asked[row])
            assert (made[0.35].kept[row] >= made[0.5].kept[row]).all()
    assert {int(d) for d in made[0.5].depth.ravel()} >= {1, 2}
