"""The ring of past questions: reading, hiding one's own slots, writing in order of ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.coordination import memory

D = 4


def filled(num_slots=5, ids=(7, 3, 9)):
    rng = np.random.default_rng(0)
    if not ids:
        return memory.empty(num_slots, D)
    return memory.write(
        memory.empty(num_slots, D),
        jnp.asarray(rng.normal(size=(len(ids), D)), jnp.float32),
        jnp.asarray(rng.normal(size=(len(ids), D)), jnp.float32),
        jnp.array(ids),
        jnp.ones(len(ids), bool),
    )


def trained_read(h0, state, own):
    module = memory.MemoryRead(D)
    params = module.init(jax.random.key(0), h0, state, own)
    params["params"]["out"]["kernel"] = jnp.eye(D)
    return module, params


def test_the_start_reads_nothing_and_can_learn():
    h0, state = jnp.ones((2, D)), filled()
    module = memory.MemoryRead(D)
    params = module.init(jax.random.key(0), h0, state, None)
    np.testing.assert_array_equal(module.apply(params, h0, state, None), h0)
    gradient = jax.grad(lambda p: module.apply(p, h0, state, None).sum())(params)
    assert np.abs(gradient["params"]["out"]["kernel"]).max() > 0


def test_read_against_numpy_with_own_slots_hidden():
    h0 = jnp.asarray(np.random.default_rng(1).normal(size=(3, D)), jnp.float32)
    state, own = filled(), jnp.array([3, 4, 9])
    module, params = trained_read(h0, state, own)
    for ids in (own, None):
        got = module.apply(params, h0, state, ids)
        query = np.asarray(h0) @ np.asarray(params["params"]["query"]["kernel"])
        for q in range(3):
            see = np.asarray(state.ids) != memory.EMPTY
            if ids is not None:
                see &= np.asarray(state.ids) != own[q]
            assert see.sum() == (3 if ids is None or q == 1 else 2)
            score = np.asarray(state.keys)[see] @ query[q] / np.sqrt(D)
            weight = np.exp(score) / np.exp(score).sum()
            want = h0[q] + weight @ np.asarray(state.values)[see]
            np.testing.assert_allclose(got[q], want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("ids,own", [((), (1, 2)), ((5,), (5, 5))])
def test_nothing_readable_leaves_h0_with_finite_gradients(ids, own):
    """An empty memory, and one whose only slot is the question's own."""
    state, own, h0 = filled(ids=ids), jnp.array(own), jnp.ones((2, D))
    module, params = trained_read(h0, state, own)
    np.testing.assert_array_equal(module.apply(params, h0, state, own), h0)
    gradients = jax.grad(lambda p, h: module.apply(p, h, state, own).sum(), argnums=(0, 1))(
        params, h0
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_slots_carry_no_gradient():
    h0, state = jnp.ones((2, D)), filled()
    module, params = trained_read(h0, state, None)
    gradient = jax.grad(
        lambda v: module.apply(params, h0, state.replace(values=v, keys=v), None).sum()
    )(state.values)
    np.testing.assert_array_equal(gradient, 0.0)


def test_write_is_in_order_of_ids_whatever_the_order_of_rows():
    rows = jnp.arange(6.0)[:, None] * jnp.ones((1, D))
    ids, valid = jnp.array([50, 10, 40, 20, 30, 5]), jnp.array([1, 1, 1, 0, 1, 1], bool)
    want = None
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4]):
        order = jnp.array(order)
        state = memory.write(
            memory.empty(8, D), rows[order], -rows[order], ids[order], valid[order]
        )
        np.testing.assert_array_equal(state.ids, [5, 10, 30, 40, 50, -1, -1, -1])
        np.testing.assert_array_equal(state.keys[:5, 0], [5, 1, 4, 2, 0])
        np.testing.assert_array_equal(state.values, -state.keys)
        assert state.count == 5
        if want is not None:
            jax.tree.map(np.testing.assert_array_equal, state, want)
        want = state


def test_the_ring_wraps_over_the_oldest():
    state = filled(num_slots=4, ids=(1, 2, 3))
    more = jnp.ones((3, D))
    state = memory.write(state, more, more, jnp.array([6, 4, 5]), jnp.ones(3, bool))
    np.testing.assert_array_equal(state.ids, [5, 6, 3, 4])
    assert state.count == 2


def test_more_rows_than_slots_keep_the_last_by_id():
    rows = jnp.arange(5.0)[:, None] * jnp.ones((1, D))
    state = memory.write(memory.empty(2, D), rows, rows, jnp.arange(5), jnp.ones(5, bool))
    assert sorted(state.ids.tolist()) == [3, 4]
    np.testing.assert_array_equal(state.keys[:, 0], state.ids)  # rows and ids stay together
    # the next write goes over the older of the two
    state = memory.write(state, rows[:1], rows[:1], jnp.array([9]), jnp.ones(1, bool))
    assert sorted(state.ids.tolist()) == [4, 9]


def test_no_slot_is_written_twice():
    """Seven rows into three slots: a scatter with repeated indices has no defined winner."""
    got = memory.slots(jnp.int32(1), jnp.arange(8) < 7, 3)
    np.testing.assert_array_equal(got, [3, 3, 3, 3, 2, 0, 1, 3])


def test_invalid_rows_write_nothing():
    state = filled()
    junk = jnp.full((2, D), jnp.nan)
    new = jax.jit(memory.write)(state, junk, junk, jnp.array([1, 2]), jnp.zeros(2, bool))
    jax.tree.map(np.testing.assert_array_equal, new, state)


def test_rollout_values_average_the_deep_ones():
    pooled = jnp.array([[[1.0], [3.0], [100.0]], [[5.0], [6.0], [7.0]]])
    depth = jnp.array([[1, 2, 0], [0, 0, 0]])
    values, written = memory.rollout_values(pooled, depth)
    np.testing.assert_allclose(values, [[2.0], [0.0]])
    np.testing.assert_array_equal(written, [True, False])
    gradient = jax.grad(lambda p: memory.rollout_values(p, depth)[0].sum())(pooled)
    np.testing.assert_array_equal(gradient, 0.0)


def test_needs_a_slot():
    with pytest.raises(ValueError, match="num_slots"):
        memory.empty(0, D)
