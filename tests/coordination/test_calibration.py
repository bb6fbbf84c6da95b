"""Running statistics: against numpy, over shards, with missing rows, and without gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.coordination import calibration

N, D = 3, 4


def rows(seed=0, q=10):
    rng = np.random.default_rng(seed)
    messages = rng.normal(2.0, 3.0, (q, N, D))
    available = rng.random((q, N)) < 0.7
    messages[~available] = np.nan
    return messages, available


def numpy_statistics(messages, available):
    kept = [messages[available[:, a], a] for a in range(N)]
    return np.stack([k.mean(0) for k in kept]), np.stack([k.std(0) for k in kept])


def test_first_pass_against_numpy(x64):
    messages, available = rows()
    shift = calibration.typical(messages, available)
    state = calibration.from_moments(calibration.moments(messages, available, shift), shift)
    mean, sigma = numpy_statistics(messages, available)
    np.testing.assert_allclose(state.mean, mean, atol=1e-13)
    np.testing.assert_allclose(state.sigma, sigma, atol=1e-13)


def test_sums_of_shards_add_up(x64):
    """Uneven shards: adding sums is exact; the mean of the shards' means is not the mean."""
    messages, available = rows()
    shift = jnp.ones((N, D))
    whole = calibration.moments(messages, available, shift)
    a = calibration.moments(messages[:3], available[:3], shift)
    b = calibration.moments(messages[3:], available[3:], shift)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12),
        jax.tree.map(jnp.add, a, b),
        whole,
    )
    right = calibration.from_moments(whole, shift).mean
    naive = (calibration.from_moments(a, shift).mean + calibration.from_moments(b, shift).mean) / 2
    assert np.abs(right - naive).max() > 0.01


def test_float32_spread_survives_a_large_mean():
    """Mean 1000, spread .1: E[x²] − E[x]² without the shift is noise of size .06 around 1e6."""
    rng = np.random.default_rng(0)
    messages = (1000 + 0.1 * rng.normal(size=(200, N, D))).astype(np.float32)
    available = np.ones((200, N), bool)
    shift = calibration.typical(messages, available)
    state = calibration.from_moments(calibration.moments(messages, available, shift), shift)
    np.testing.assert_allclose(state.sigma, messages.astype(np.float64).std(0), rtol=1e-3)
    zero = jnp.zeros((N, D))
    plain = calibration.from_moments(calibration.moments(messages, available, zero), zero)
    assert np.abs(plain.sigma / state.sigma - 1).max() > 0.1


def test_update_moves_by_alpha():
    """From (0, 1) with a batch of −1, 3 (mean 1, spread 2) and α = .05: (.05, 1.05)."""
    state = calibration.identity(1, 1)
    messages, available = jnp.array([[[-1.0]], [[3.0]]]), jnp.ones((2, 1), bool)
    new = calibration.update(state, calibration.moments(messages, available, state.mean))
    np.testing.assert_allclose([new.mean[0, 0], new.sigma[0, 0]], [0.05, 1.05], rtol=1e-6)


def test_agents_without_rows_keep_their_statistics():
    state = calibration.Calibration(mean=jnp.full((2, 1), 5.0), sigma=jnp.full((2, 1), 2.0))
    messages, available = jnp.full((1, 2, 1), 9.0), jnp.array([[False, True]])
    new = calibration.update(state, calibration.moments(messages, available, state.mean), 0.5)
    np.testing.assert_allclose(new.mean[:, 0], [5.0, 7.0])
    np.testing.assert_allclose(new.sigma[:, 0], [2.0, 2.0])  # one row has no spread


def test_module_against_numpy_and_gradients(x64):
    messages = np.random.default_rng(0).normal(size=(5, N, D))
    state = calibration.Calibration(
        mean=jnp.asarray(np.random.default_rng(1).normal(size=(N, D))),
        sigma=jnp.full((N, D), 0.5).at[0, 0].set(0.0),
    )
    module = calibration.Calibrate(N, D, dtype=jnp.float64)
    params = module.init(jax.random.key(0), messages, state)
    params = jax.tree.map(lambda x: x + 0.3, params)
    out = module.apply(params, messages, state)
    sigma = np.maximum(np.asarray(state.sigma), calibration.SIGMA_FLOOR)
    want = 1.3 * (messages - np.asarray(state.mean)) / sigma + 0.3
    np.testing.assert_allclose(out, want, atol=1e-10)
    to_state = jax.grad(lambda s: module.apply(params, messages, s).sum())(state)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0.0), to_state)
    to_messages = jax.grad(lambda m: module.apply(params, m, state).sum())(jnp.asarray(messages))
    np.testing.assert_allclose(
        to_messages, np.broadcast_to(1.3 / sigma, messages.shape), rtol=1e-12
    )


def test_statistics_carry_no_gradient():
    def total(messages):
        state = calibration.identity(N, D)
        sums = calibration.moments(messages, jnp.ones((4, N), bool), state.mean)
        new = calibration.update(state, sums)
        return new.mean.sum() + new.sigma.sum()

    gradient = jax.grad(total)(jnp.ones((4, N, D)))
    np.testing.assert_array_equal(gradient, 0.0)


def test_one_row_has_no_spread():
    """σ̂ of a single row is 1; its 0 would be floored at 1e-3 and blow other messages up."""
    messages, available = np.full((3, 1, 2), 5.0), np.array([[True], [False], [False]])
    shift = np.zeros((1, 2))
    state = calibration.from_moments(calibration.moments(messages, available, shift), shift)
    assert state.mean.tolist() == [[5, 5]] and state.sigma.tolist() == [[1, 1]]
