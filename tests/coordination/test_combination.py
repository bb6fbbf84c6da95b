"""The combination against numpy, as a vote at the start, and its inert parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination import combination, cross_read
from gradejax.coordination.combination import NO_ANSWER, Combination

Q, G, N, C, D, DC = 2, 3, 4, 5, 6, 7  # N = A + 1, M0 last


def make_inputs(seed=0):
    rng = np.random.default_rng(seed)
    members = rng.random((Q, G, N)) < 0.7
    members[..., 0] = True
    members[..., -1] = False
    members[0, 0] = [False, False, False, True]  # depth 0
    kept = members & (rng.random((Q, G, N)) < 0.8)
    kept[..., 0] |= members[..., 0]
    kept[0, 0] = members[0, 0]
    edges = rng.random((Q, G, N, N)) < 0.5
    return {
        "h": rng.normal(size=(Q, D)),
        "messages": rng.normal(size=(Q, N, D)),
        "answers": np.array([[0, 1, 0, 2], [3, NO_ANSWER, 1, 1]]),
        "embeddings": rng.normal(size=(Q, C, DC)),
        "candidate_mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool),
        "choices": np.array([False, True]),
        "members": members,
        "kept": kept,
        "read": np.asarray(cross_read.read_matrix(edges, members)),
        "keep_probs": rng.random((Q, G, N)),
    }


def make(read_mask="additive", dtype=jnp.float64, trained=True, inputs=None):
    inputs = make_inputs() if inputs is None else inputs
    module = Combination(N, D, read_mask, dtype)
    params = module.init(jax.random.key(0), **inputs)
    if trained:  # every parameter away from its start
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        leaves = [
            x + 0.5 * jax.random.normal(k, x.shape, x.dtype)
            for x, k in zip(leaves, keys, strict=True)
        ]
        params = jax.tree.unflatten(tree, leaves)
    return module, params


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def reference(params, read_mask, i):
    """The equations, one question, rollout and agent at a time."""
    p = jax.tree.map(np.asarray, params["params"])
    logits = np.zeros((Q, G, C + 1))
    agents = np.zeros((Q, N, C + 1))
    pooled = np.zeros((Q, G, D))
    for q in range(Q):
        m = i["messages"][q]
        query, key, value = (m @ p[name]["kernel"] for name in ("query", "key", "value"))
        u = i["embeddings"][q] @ p["candidate"]["kernel"]
        u[~i["candidate_mask"][q]] = 0
        for a in range(N):
            for c in range(C):
                agents[q, a, c] = (m[a] @ p["agent_heads"][a]) @ u[c] / np.sqrt(D)
                agents[q, a, c] += p["agent_bias"][a] * (i["answers"][q, a] == c)
        agents[q, :, C] = p["null"]
        for g in range(G):
            members = np.flatnonzero(i["members"][q, g])
            z, w, v = {}, {}, {}
            for a in members:
                score = key[members] @ query[a] / np.sqrt(D)
                r = i["read"][q, g, a][members].astype(float)
                if read_mask == "additive":
                    score = np.where(r > 0, score, -np.inf)
                else:
                    score = score * r
                z[a] = softmax(score) @ value[members]
                if i["kept"][q, g, a]:
                    w[a] = np.log1p(np.exp(z[a] @ p["weight"] + p["weight_bias"]))
                    v[a] = i["keep_probs"][q, g, a]
            if w:
                pooled[q, g] = sum(v[a] * z[a] for a in w) / sum(v.values())
            system = np.concatenate([pooled[q, g], i["h"][q]]) @ p["system"]["kernel"]
            logits[q, g, :C] = u @ system / np.sqrt(D)
            for a in w:
                logits[q, g, :C] += w[a] * agents[q, a, :C]
            logits[q, g, C] = p["null"]
    return logits, agents, pooled


@pytest.mark.parametrize("read_mask", combination.READ_MASKS)
def test_forward_against_numpy(x64, read_mask):
    inputs = make_inputs()
    module, params = make(read_mask)
    out = module.apply(params, **inputs)
    logits, agents, pooled = reference(params, read_mask, inputs)
    np.testing.assert_allclose(out.logits, logits, atol=1e-12)
    np.testing.assert_allclose(out.agent_logits, agents, atol=1e-12)
    np.testing.assert_allclose(out.pooled, pooled, atol=1e-12)
    assert out.logits.dtype == jnp.float64


def test_the_two_read_masks_differ_by_the_weight_of_closed_edges(x64):
    """Two agents, no edges, all logits 0: alone each sees itself (1, 0); printed form (½, ½)."""
    values = jnp.eye(2)
    read, members = jnp.eye(2, dtype=bool)[None], jnp.ones((1, 2), bool)
    additive = combination.attend(jnp.zeros((2, 2)), values, read, members, "additive")
    printed = combination.attend(jnp.zeros((2, 2)), values, read, members, "multiplicative")
    np.testing.assert_allclose(additive[0], np.eye(2), atol=1e-15)
    np.testing.assert_allclose(printed[0], np.full((2, 2), 0.5), atol=1e-15)
    with pytest.raises(ValueError, match="read_mask.*'sum'"):
        combination.attend(jnp.zeros((2, 2)), values, read, members, "sum")


def test_relaxed_edges_agree_with_hard_ones_at_the_ends(x64):
    logits, values = np.array([[0.3, 1.0], [0.2, -0.4]]), np.eye(2)
    members = np.ones((1, 2), bool)
    for mask in combination.READ_MASKS:
        for edge in (0.0, 1.0):
            r = np.array([[[1.0, edge], [edge, 1.0]]])
            hard = combination.attend(jnp.asarray(logits), values, r > 0.5, members, mask)
            soft = combination.attend(jnp.asarray(logits), values, r, members, mask)
            np.testing.assert_allclose(hard, soft, atol=1e-15)
    # additive: weight of the edge ∝ r e^s. r = .5 with equal scores: 1/3.
    r = np.array([[[1.0, 0.5], [0.5, 1.0]]])
    got = combination.attend(jnp.zeros((2, 2)), values, r, members, "additive")
    np.testing.assert_allclose(got[0, 0], [2 / 3, 1 / 3], atol=1e-15)


def count_votes(answers, kept, choices, mask):
    """ŷ of a plain vote; ties to the lowest option, or to the lowest agent in K that gave it."""
    votes = np.zeros(len(mask))
    for a in np.flatnonzero(kept):
        if answers[a] >= 0:
            votes[answers[a]] += 1
    if choices:
        return int(np.argmax(np.where(mask, votes, -1)))
    for a in np.flatnonzero(kept):
        if answers[a] >= 0 and votes[answers[a]] == votes.max():
            return int(answers[a])
    return NO_ANSWER


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_untrained_system_is_exactly_a_vote(x64, dtype):
    rng = np.random.default_rng(0)
    agree = 0
    for seed in range(20):
        inputs = make_inputs(seed)
        inputs["answers"] = np.where(
            rng.random((Q, N)) < 0.15, NO_ANSWER, rng.integers(0, 3, (Q, N))
        )
        module, params = make(dtype=dtype, trained=False, inputs=inputs)
        out = module.apply(params, **inputs)
        got = combination.answer(out, inputs["answers"], inputs["choices"], inputs["kept"])
        for q in range(Q):
            for g in range(G):
                want = count_votes(
                    inputs["answers"][q],
                    inputs["kept"][q, g],
                    inputs["choices"][q],
                    inputs["candidate_mask"][q],
                )
                assert got[q, g] == want, (seed, q, g)
                agree += 1
    assert agree == 20 * Q * G


def reindex(answer_texts):
    """Candidates as the records have them: by the lowest agent of the pool that gave them."""
    texts = list(dict.fromkeys(t for t in answer_texts if t))
    return np.array([texts.index(t) if t else NO_ANSWER for t in answer_texts]), texts


@pytest.mark.parametrize("trained", [False, True])
def test_the_answer_of_an_agent_not_asked_or_pruned_changes_nothing(x64, trained):
    """Agent 0 was not asked, agent 3 pruned; agents 1 and 2 tie.

    Whatever 0 and 3 say, columns move: with "7" from agent 0 the tie of 5 and 7 would go to column
    0 = "7", the lowest column, but agent 1 is the lowest *asked* one and said "5".
    """
    vectors = {t: np.random.default_rng(ord(t)).normal(size=DC) for t in "5799x"}
    answers_given, probabilities = set(), []
    for outsider, pruned in (("9", "x"), ("7", "x"), (None, "7"), ("5", None), ("7", "5")):
        said = [outsider, "5", "7", pruned]
        answers, texts = reindex(said)
        embeddings = np.zeros((1, C, DC))
        embeddings[0, : len(texts)] = [vectors[t] for t in texts]
        rng = np.random.default_rng(3)
        members = np.array([[[False, True, True, True]]])
        kept = np.array([[[False, True, True, False]]])
        inputs = {
            "h": rng.normal(size=(1, D)),
            "messages": rng.normal(size=(1, N, D)),
            "answers": answers[None],
            "embeddings": embeddings,
            "candidate_mask": (np.arange(C) < len(texts))[None],
            "choices": np.array([False]),
            "members": members,
            "kept": kept,
            "read": np.asarray(cross_read.read_matrix(np.ones((1, 1, N, N), bool), members)),
            "keep_probs": np.ones((1, 1, N)),
        }
        module, params = make(trained=trained, inputs=inputs)
        out = module.apply(params, **inputs)
        got = combination.answer(out, answers[None], inputs["choices"], kept)[0, 0]
        answers_given.add(texts[got])
        p = np.exp(combination.log_probs(out)[0, 0])
        probabilities.append([p[texts.index("5")], p[texts.index("7")], p[-1]])
        assert p[: len(texts)].sum() + p[-1] == pytest.approx(1.0)
    if not trained:
        assert answers_given == {"5"}
    assert len(answers_given) == 1
    np.testing.assert_allclose(probabilities, [probabilities[0]] * 5, atol=1e-12)


def test_messages_outside_s_and_missing_candidates_are_inert(x64):
    inputs = make_inputs()
    inputs["members"][..., 2] = False
    inputs["kept"] &= inputs["members"]
    module, params = make()
    want = module.apply(params, **inputs)
    dirty = {k: v.copy() for k, v in inputs.items()}
    dirty["messages"][:, 2] = 1e3
    dirty["read"][..., 2] = True
    dirty["read"][..., 2, :] = True
    dirty["keep_probs"][..., 2] = 5.0
    dirty["embeddings"][~inputs["candidate_mask"]] = np.nan
    got = module.apply(params, **dirty)
    for name in ("logits", "states", "pooled", "weights", "candidates"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), atol=1e-12)


def test_depth_zero_is_the_orchestrators_answer():
    inputs = make_inputs()
    module, params = make(dtype=jnp.float32, trained=False)
    out = module.apply(params, **inputs)
    got = combination.answer(out, inputs["answers"], inputs["choices"], inputs["kept"])
    assert got[0, 0] == inputs["answers"][0, -1] == 2
    np.testing.assert_array_equal(out.candidates[0, 0], [0, 0, 1, 0, 0, 1])


def test_candidate_set():
    """Open: answers of K and the null. Multiple choice: the options, no null."""
    answers = np.array([[0, 1, NO_ANSWER], [0, 1, NO_ANSWER]])
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    kept = np.array([[[0, 1, 1], [0, 0, 1]], [[1, 0, 0], [0, 0, 1]]], bool)
    got = combination.candidate_set(answers, mask, np.array([False, True]), kept)
    np.testing.assert_array_equal(got, [[[0, 1, 0, 1], [0, 0, 0, 1]], [[1, 1, 1, 0], [1, 1, 1, 0]]])
    nothing = combination.candidate_set(answers, mask & False, np.array([False, True]), kept)
    np.testing.assert_array_equal(nothing[..., -1], True)
    assert not nothing[..., :-1].any()


def test_the_null_is_answered_only_without_a_real_candidate():
    inputs = make_inputs()
    inputs["answers"][0] = NO_ANSWER
    module, params = make(dtype=jnp.float32, trained=False)
    params["params"]["null"] = jnp.float32(50.0)
    out = module.apply(params, **inputs)
    got = combination.answer(out, inputs["answers"], inputs["choices"], inputs["kept"])
    np.testing.assert_array_equal(got[0], NO_ANSWER)  # open, nobody said anything
    assert (got[1] >= 0).all()  # a choice is always made
    inputs["answers"][0] = 1
    out = module.apply(params, **inputs)
    got = combination.answer(out, inputs["answers"], inputs["choices"], inputs["kept"])
    np.testing.assert_array_equal(got[0], 1)  # although the null has nearly all the probability
    assert np.exp(combination.log_probs(out)[0, 0, -1]) > 0.99


def test_gold_log_prob():
    inputs = make_inputs()
    module, params = make(dtype=jnp.float32)
    out = module.apply(params, **inputs)
    log_p, agents = combination.log_probs(out), combination.agent_log_probs(out)
    assert agents.shape == (Q, G, N, C + 1)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.exp(agents).sum(-1), 1.0, rtol=1e-5)
    gold = np.array([0, 3])
    value, present = combination.gold_log_prob(log_p, gold, out.candidates)
    for q in range(Q):
        for g in range(G):
            there = bool(out.candidates[q, g, gold[q]])
            assert present[q, g] == there
            assert value[q, g] == log_p[q, g, gold[q] if there else C]
    one = np.eye(C, dtype=bool)[gold]
    np.testing.assert_array_equal(
        combination.gold_log_prob(log_p, one, out.candidates)[0], value)  # fmt: skip
    assert not present[0, 0] and present[0, 1]  # depth 0 said 2; agent 0 said 0
    value, _ = combination.gold_log_prob(agents, gold, out.candidates)
    np.testing.assert_array_equal(value[1], agents[1, :, :, 3])
    # Gold absent from a multiple choice question: nothing to learn, and no infinity.
    value, present = combination.gold_log_prob(log_p, np.array([4, NO_ANSWER]), out.candidates)
    np.testing.assert_array_equal(value[1], 0.0)
    assert not present.any()


def test_several_right_candidates():
    """The log-probability that the answer is one of them: log(.2 + .3) = -.693; the first alone
    would give -1.609, and the sum of both logarithms -2.813. Absent ones do not count."""
    p = np.log([[[0.2, 0.3, 0.4, 0.1]]])
    real = np.array([[[True, True, True, True]]])
    gold = np.array([[True, True, False]])
    value, present = combination.gold_log_prob(p, gold, real)
    np.testing.assert_allclose(value, [[-0.6931472]], atol=1e-6)
    value, _ = combination.gold_log_prob(p, gold, real & [True, False, True, True])
    np.testing.assert_allclose(value, [[np.log(0.2)]], atol=1e-6)
    value, present = combination.gold_log_prob(p, ~gold & [True, True, False], real)
    np.testing.assert_allclose(value, [[np.log(0.1)]], atol=1e-6)  # nobody is right: the null
    assert not present.any()
    slope = jax.grad(lambda p: combination.gold_log_prob(p, gold, real)[0].sum())(jnp.asarray(p))
    np.testing.assert_allclose(slope, [[[0.4, 0.6, 0, 0]]], atol=1e-6)
    none = jnp.full((1, 1, 4), -jnp.inf)
    slope = jax.grad(lambda p: combination.gold_log_prob(p, gold, real & False)[0].sum())(none)
    np.testing.assert_array_equal(slope, 0.0)
    answers = jnp.asarray([[0, 1, 2, NO_ANSWER]])
    right = combination.is_right(answers, jnp.asarray(gold), 3)
    assert right.tolist() == [[True, True, False, False]]


def test_gradient_paths():
    """Cross-entropy reaches every parameter of the head, h and m̃, and never v; closed rows: 0."""
    inputs = {k: jnp.asarray(v) for k, v in make_inputs().items()}
    inputs = {k: v.astype(jnp.float32) if v.dtype == jnp.float64 else v for k, v in inputs.items()}
    module, params = make(dtype=jnp.float32)

    def loss(params, h, messages, keep_probs):
        out = module.apply(
            params, **{**inputs, "h": h, "messages": messages, "keep_probs": keep_probs}
        )
        value, _ = combination.gold_log_prob(
            combination.log_probs(out), jnp.array([0, 3]), out.candidates
        )
        return -value.sum()

    head, h, messages, keep = jax.grad(loss, argnums=(0, 1, 2, 3))(
        params, inputs["h"], inputs["messages"], inputs["keep_probs"]
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(head):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path
    assert np.abs(h).max() > 0 and np.abs(messages).max() > 0
    np.testing.assert_array_equal(keep, 0.0)


def test_rows_without_members_are_zero_with_finite_gradients():
    inputs = make_inputs()
    for name in ("members", "kept"):
        inputs[name][:] = False
    module, params = make(dtype=jnp.float32, inputs=inputs)

    def total(params, messages):
        out = module.apply(params, **{**inputs, "messages": messages})
        log_p = combination.log_probs(out)
        return jnp.where(out.candidates, log_p, 0.0).sum() + out.states.sum(), out

    (_, out), grads = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
        params, jnp.asarray(inputs["messages"], jnp.float32)
    )
    np.testing.assert_array_equal(out.states, 0.0)
    np.testing.assert_array_equal(out.pooled, 0.0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
