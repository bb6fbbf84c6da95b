"""Pruning: the gate, and its law as the conditioned Bernoulli over S."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from gradejax.coordination import prune, subset


def test_gate_against_numpy(x64):
    rng = np.random.default_rng(0)
    h, messages = rng.normal(size=(2, 4)), rng.normal(size=(2, 3, 4))
    gate = prune.PruneGate(d=4, dtype=jnp.float64)
    params = gate.init(jax.random.key(0), h, messages)
    mlp = jax.tree.map(np.asarray, params["params"]["mlp"])
    x = np.concatenate([np.repeat(h[:, None], 3, 1), messages], -1)
    x = x @ mlp["hidden"]["kernel"] + mlp["hidden"]["bias"]
    x = x * 0.5 * (1 + erf(x / np.sqrt(2)))
    want = (x @ mlp["out"]["kernel"] + mlp["out"]["bias"])[..., 0]
    np.testing.assert_allclose(gate.apply(params, h, messages), want, atol=1e-14)


def test_threshold_is_thirty_five_percent():
    """v = .378, .332, .9 over S = {0, 1}: agent 2 was not asked; one half would keep the best."""
    logits, members = np.array([-0.5, -0.7, 2.2]), np.array([True, True, False])
    np.testing.assert_array_equal(prune.threshold(logits, members), [True, False, False])
    logits = np.array([-0.5, -0.55, 2.2])
    np.testing.assert_array_equal(prune.threshold(logits, members), [True, True, False])
    np.testing.assert_array_equal(subset.mode(logits, members), [True, False, False])
    # nobody reaches .35: the best v alone
    np.testing.assert_array_equal(prune.threshold(logits - 3, members), [True, False, False])


def test_a_lone_member_is_kept_by_force():
    logits, members = jnp.array([-30.0, 4.0]), jnp.array([True, False])
    kept = prune.sample(jax.random.key(0), logits, members, (50,))
    np.testing.assert_array_equal(kept, np.tile([True, False], (50, 1)))
    value, gradient = jax.value_and_grad(lambda s: prune.log_prob(members, s, members))(logits)
    assert value == 0 and not np.any(gradient)
    assert not prune.takes_part(members)
    assert not prune.decisions(members, logits, members).free.any()


def test_kept_are_a_non_empty_part_of_the_asked():
    members = jax.random.bernoulli(jax.random.key(0), 0.5, (500, 4))
    kept = prune.sample(jax.random.key(1), jnp.full((1, 4), -6.0), members)
    assert not (kept & ~members).any()
    np.testing.assert_array_equal(kept.any(-1), members.any(-1))
    np.testing.assert_array_equal(prune.kl(jnp.zeros((1, 4)), jnp.zeros((1, 4)), members), 0.0)
