"""Which loss term reaches which parameter: each term alone, zeros exact (design, section 5)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_grade as small

from gradejax.systems.grade import policy
from gradejax.systems.grade.network import question
from gradejax.systems.grade.objective import Counts, loss

TERMS = ("policy", "kl", "supervised", "balance", "depth", "read")
GATES = ("managers", "depth", "assignment", "read", "prune")
MESSAGES = ("adapters", "calibrate")  # Φ, γ, β
QUESTION = ("encoder", "project", "project_norm", "memory")  # φ and the memory's read
ANSWER = ("combination",)  # W_a, b, W_c, ω, W_ω, QKV
# Each regulariser touches its own gate and nothing else.
REGULARISED = {"balance": ("managers", "assignment"), "depth": ("depth",), "read": ("read",)}


@functools.cache
def gradients():
    """term → {path: gradient}, at parameters and states none of which is 0."""
    shape = small.SHAPE
    tree = small.perturbed(small.params())
    batch = small.batch(seed=2)
    memory = small.full_memory()
    rollout = small.random_rollout(batch.records)
    reference = small.logits(batch)
    rng = np.random.default_rng(0)
    valid = batch.records.valid[:, None] & (rollout.depth >= 0)
    advantages = rng.normal(size=valid.shape).astype(np.float32)
    counts = Counts(rollouts=np.float32(valid.sum()), questions=np.float32(small.Q))

    @small.quick
    def run(tree):
        start = question(shape, tree, batch, memory, small.CALIBRATION, own_slots=False)
        old, _ = policy.decisions(
            shape.config, shape.pool, start.logits, rollout, batch.records.available
        )

        def terms(tree):
            total, parts = loss(
                shape, tree, batch, memory, small.CALIBRATION, rollout, old, advantages,
                reference, valid, counts,
            )  # fmt: skip
            return jnp.stack([getattr(parts, name) for name in TERMS]), (total, parts)

        rows, pull, (total, parts) = jax.vjp(terms, tree, has_aux=True)
        return jax.vmap(pull)(jnp.eye(len(TERMS)))[0], rows, total, parts

    grads, rows, total, parts = jax.device_get(run(tree))
    config = shape.config
    weights = np.array([1, config.kl_weight, config.supervised_weight, config.balance_weight,
                        config.depth_weight, config.read_weight])  # fmt: skip
    np.testing.assert_allclose(total, (weights * rows).sum(), rtol=1e-6)
    assert parts.stats.max_abs_log_ratio < 1e-6 and (rows[1:] > 0).all()
    found = {term: {} for term in TERMS}
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        name = "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path)
        for i, term in enumerate(TERMS):
            found[term][name.replace("network/params/", "")] = leaf[i]
    return found


def of(term, parts):
    got = {n: g for n, g in gradients()[term].items() if n.split("/")[0] in parts}
    assert {n.split("/")[0] for n in got} == set(parts)
    assert all(np.isfinite(g).all() for g in got.values())
    return got


def assert_zero(term, parts):
    for name, gradient in of(term, parts).items():
        assert not gradient.any(), f"{term} reaches {name}"


def assert_reaches(term, parts, but=()):
    for name, gradient in of(term, parts).items():
        assert gradient.any() != any(b in name for b in but), f"{term} and {name}"


def test_the_table_covers_every_parameter():
    names = {n.split("/")[0] for n in gradients()["policy"]}
    assert names == {*GATES, *MESSAGES, *QUESTION, *ANSWER}


@pytest.mark.parametrize("term", ["policy", "kl"])
def test_policy_and_kl(term):
    assert_reaches(term, GATES)
    assert_reaches(term, QUESTION)
    # M0 is neither read nor pruned: its own message reaches no gate.
    assert_reaches(term, MESSAGES, but=("agent_6",))
    assert not of(term, ("calibrate",))["calibrate/gamma"][-1].any()
    assert of(term, ("calibrate",))["calibrate/gamma"][:-1].any(-1).all()
    assert_zero(term, ANSWER)


def test_supervised():
    assert_zero("supervised", GATES)
    assert_reaches("supervised", MESSAGES)  # M0's too, through depth 0
    assert_reaches("supervised", QUESTION)
    assert_reaches("supervised", ANSWER)


@pytest.mark.parametrize("term", list(REGULARISED))
def test_regularisers(term):
    own = REGULARISED[term]
    assert_reaches(term, own)
    assert_zero(term, tuple(g for g in GATES if g not in own))
    assert_zero(term, MESSAGES + QUESTION + ANSWER)
