"""All parts in one rollout under jit: padding and missing agents inert, keys by row, one trace."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from gradejax import types
from gradejax.coordination import (
    Adapters,
    AssignmentGate,
    Calibrate,
    Combination,
    DepthGate,
    Managers,
    PruneGate,
    ReadGate,
    calibration,
    categorical,
    combination,
    cross_read,
    depth,
    manager_logits,
    prune,
    subset,
)

MANAGER_OF, M, A, G, D = (0, 1, 0), 2, 3, 4, 8
WIDTHS, C, DC = (5, 7, 5, 3), 4, 6
PARTS = {
    "adapters": Adapters(WIDTHS, D),
    "calibrate": Calibrate(A + 1, D),
    "managers": Managers(M, D),
    "assignment": AssignmentGate(MANAGER_OF, D),
    "depth": DepthGate(D),
    "read": ReadGate(D),
    "prune": PruneGate(D),
    "combination": Combination(A + 1, D),
}


def records(q=5):
    rng = np.random.default_rng(0)
    available = rng.random((q, A + 1)) < 0.8
    available[0], available[1] = True, [True, False, False, True]
    available[-1] = False  # a padding row
    features = []
    for a, width in enumerate(WIDTHS):
        f = rng.normal(size=(q, width)).astype(np.float32)
        f[~available[:, a]] = np.nan
        features.append(f)
    embeddings = rng.normal(size=(q, C, DC)).astype(np.float32)
    embeddings[-1] = np.nan
    return {
        "ids": np.arange(10, 10 + q),
        "h": rng.normal(size=(q, D)).astype(np.float32),
        "features": tuple(features),
        "available": available,
        "answers": np.where(available, rng.integers(0, C, (q, A + 1)), types.NO_ANSWER),
        "embeddings": embeddings,
        "candidate_mask": np.arange(q)[:, None] < np.full((1, C), q - 1),
        "choices": rng.random(q) < 0.5,
    }


def forward(params, r, state):
    """Question-level logits, then G sampled rollouts, their log-probabilities and the answer."""

    def part(name, *args):
        return PARTS[name].apply(params[name], *args)

    available, h = r["available"], r["h"]
    messages = part("calibrate", part("adapters", r["features"], available), state)
    scores = part("assignment", h, part("managers", h))
    m_logits, m_allowed = manager_logits(scores, available[:, :A], MANAGER_OF, M)
    logits = {
        "depth": part("depth", h),
        "read": part("read", messages[:, :A]),
        "prune": part("prune", h, messages[:, :A]),
    }

    def draw(row, allowed_depth, d_logits, m_logits, m_allowed, scores, read, keep, available):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), row), 5)
        levels = categorical.sample(keys[0], d_logits, allowed_depth, (G,))
        manager = categorical.sample(keys[1], m_logits, m_allowed, (G,))
        manager = jnp.where(levels == depth.MANAGER, manager, types.NO_MANAGER)
        allowed = depth.allowed_agents(levels, manager, available[None], MANAGER_OF, M)
        asked = subset.sample(keys[2], scores[None], allowed)
        deep = asked & (levels == depth.POOL)[:, None]
        edges = cross_read.sample(keys[3], read[None], deep).hard
        kept = jnp.where(deep, prune.sample(keys[4], keep[None], deep), asked)
        return levels, manager, allowed, asked, deep, edges, kept

    levels, manager, allowed, asked, deep, edges, kept = jax.vmap(draw)(
        r["ids"],
        depth.allowed_depths(available),
        logits["depth"],
        m_logits,
        m_allowed,
        scores,
        logits["read"],
        logits["prune"],
        available,
    )
    scores, keep, read = scores[:, None], logits["prune"][:, None], logits["read"][:, None]
    log_prob = {
        "depth": categorical.log_prob(
            levels, logits["depth"][:, None], depth.allowed_depths(available)[:, None]
        ),
        "assignment": categorical.log_prob(manager, m_logits[:, None], m_allowed[:, None])
        + subset.log_prob(asked, scores, allowed),
        "read": cross_read.log_prob(edges, read, deep),
        "prune": prune.log_prob(kept & deep, keep, deep),
    }
    members, kept = (depth.with_orchestrator(levels, x) for x in (asked, kept))
    members, kept = members & available[:, None], kept & available[:, None]
    full = jnp.pad(edges, ((0, 0), (0, 0), (0, 1), (0, 1)))
    out = part(
        "combination",
        h,
        messages,
        r["answers"],
        r["embeddings"],
        r["candidate_mask"],
        r["choices"],
        members,
        kept,
        cross_read.read_matrix(full, members),
        jnp.ones(members.shape),
    )
    return log_prob, combination.answer(out, r["answers"], r["choices"], kept), (members, kept, out)


def init(r, state):
    h, available = r["h"], r["available"]
    key = jax.random.key(7)
    messages = jnp.zeros((len(h), A + 1, D))
    members = jnp.ones((len(h), G, A + 1), bool)
    arguments = {
        "adapters": (r["features"], available),
        "calibrate": (messages, state),
        "managers": (h,),
        "assignment": (h, jnp.zeros((len(h), M, D))),
        "depth": (h,),
        "read": (messages[:, :A],),
        "prune": (h, messages[:, :A]),
        "combination": (
            h,
            messages,
            r["answers"],
            r["embeddings"],
            r["candidate_mask"],
            r["choices"],
            members,
            members,
            jnp.ones((len(h), G, A + 1, A + 1), bool),
            jnp.ones(members.shape),
        ),
    }
    return {name: PARTS[name].init(key, *arguments[name]) for name in PARTS}


def test_rollouts_are_consistent_and_padding_is_inert():
    r, state = records(), calibration.identity(A + 1, D)
    params = init(r, state)
    log_prob, answers, (members, kept, _) = jax.jit(forward)(params, r, state)
    for name, value in log_prob.items():
        assert np.isfinite(value).all() and (np.asarray(value) <= 1e-6).all(), name
        np.testing.assert_array_equal(value[-1], 0.0)
    assert not (kept & ~members).any()
    np.testing.assert_array_equal(kept.any(-1), members.any(-1))
    assert members[:-1].any(-1).all() and not members[-1].any()
    assert not (members & ~r["available"][:, None]).any()
    np.testing.assert_array_equal(answers[-1], types.NO_ANSWER)

    def loss(params, r):
        log_prob, _, (_, _, out) = forward(params, r, state)
        log_p = jnp.where(out.candidates, combination.log_probs(out), 0.0)
        return sum(v.sum() for v in log_prob.values()) + log_p.sum()

    gradient = jax.jit(jax.grad(loss))
    with_padding = gradient(params, r)
    without = gradient(params, jax.tree.map(lambda x: x[:-1], r))
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(with_padding), jax.tree.leaves(without), strict=True
    ):
        assert np.isfinite(x).all(), path
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=str(path))


def test_draws_depend_on_the_rows_id_and_not_on_its_place():
    r, state = records(), calibration.identity(A + 1, D)
    params = init(r, state)
    traced = jax.jit(chex.assert_max_traces(forward, n=1))
    _, answers, (members, kept, _) = traced(params, r, state)
    order = np.array([3, 0, 4, 2, 1])
    _, moved, (moved_members, moved_kept, _) = traced(
        params, jax.tree.map(lambda x: x[order], r), state
    )
    np.testing.assert_array_equal(moved_members, members[order])
    np.testing.assert_array_equal(moved_kept, kept[order])
    np.testing.assert_array_equal(moved, answers[order])


def test_sentinels_agree_with_the_shared_types():
    assert combination.NO_ANSWER == types.NO_ANSWER
    assert categorical.NO_CHOICE == types.NO_MANAGER
