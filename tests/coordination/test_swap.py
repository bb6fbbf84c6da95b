"""Ridge alignment against the plain equations and brute-force leave-one-out."""

import numpy as np
import pytest

from gradejax.coordination import swap


def data(n=20, width=50, d=3, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 2.0, (n, width))
    return x, x @ rng.normal(size=(width, d)) / 7 + 4 + noise * rng.normal(size=(n, d))


def primal(x, y, penalty):
    """(XᵀX + λI)⁻¹ XᵀY on centred data, the intercept not penalised."""
    xc, yc = x - x.mean(0), y - y.mean(0)
    kernel = np.linalg.solve(xc.T @ xc + penalty * np.eye(x.shape[1]), xc.T @ yc)
    return kernel, y.mean(0) - x.mean(0) @ kernel


@pytest.mark.parametrize("n,width", [(20, 50), (40, 5)])
def test_dual_equals_primal(n, width):
    x, y = data(n, width)
    fit = swap.ridge(x, y, penalties=np.array([3.0]))
    kernel, bias = primal(x, y, 3.0)
    np.testing.assert_allclose(fit.kernel, kernel, atol=1e-9)
    np.testing.assert_allclose(fit.bias, bias, atol=1e-9)


@pytest.mark.parametrize("n,width", [(20, 50), (40, 5)])
def test_leave_one_out_is_what_refitting_gives(n, width):
    x, y = data(n, width, noise=1.0)
    penalties = np.array([0.1, 10.0, 300.0])
    errors = []
    for penalty in penalties:
        left = []
        for i in range(n):
            rest = np.arange(n) != i
            kernel, bias = primal(x[rest], y[rest], penalty)
            left.append((y[i] - x[i] @ kernel - bias) ** 2)
        errors.append(np.mean(left))
        fit = swap.ridge(x, y, penalties=np.array([penalty]))
        np.testing.assert_allclose(fit.loo_error, errors[-1], rtol=1e-8)
    assert swap.ridge(x, y, penalties=penalties).penalty == penalties[np.argmin(errors)]


def test_held_out_r2_is_of_a_fit_without_them():
    x, y = data(n=64, width=16, noise=0.3)
    held = np.arange(64) >= 48
    fit = swap.align(x, y, held)
    part = swap.ridge(x[~held], y[~held])
    want = swap.r_squared(x[held] @ part.kernel + part.bias, y[held])
    assert fit.held_out_r2 == pytest.approx(want) and 0.5 < want < 1
    leaky = swap.r_squared(x[held] @ fit.kernel + fit.bias, y[held])
    assert leaky > want
    np.testing.assert_allclose(fit.kernel, swap.ridge(x, y).kernel)  # the map uses all anchors
    assert np.isnan(swap.align(x, y, np.zeros(64, bool)).held_out_r2)


def test_unrelated_features_are_not_believed():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 200)), rng.normal(size=(64, 3))
    assert swap.align(x, y, np.arange(64) >= 48).held_out_r2 < 0.2


def test_r_squared_by_hand():
    """Targets 0, 2; predictions 0, 1: residual 1, spread 2, R² = .5."""
    assert swap.r_squared(np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])) == 0.5
    assert np.isnan(swap.r_squared(np.zeros((2, 1)), np.ones((2, 1))))


def test_constant_features_and_too_few_anchors():
    fit = swap.ridge(np.ones((5, 4)), np.arange(10.0).reshape(5, 2))
    np.testing.assert_allclose(fit.kernel, 0.0)
    np.testing.assert_allclose(fit.bias, [4.0, 5.0])
    with pytest.raises(ValueError, match="at least 3 anchors"):
        swap.ridge(np.ones((2, 4)), np.ones((2, 2)))
