import numpy as np
from scipy.special import expit

from gradejax.evaluation.lbfgs import minimize


def test_quadratic_matches_the_linear_solve():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(31, 31))
    matrix, target = root @ root.T + 0.1 * np.eye(31), rng.normal(size=31)
    found = minimize(
        lambda x: (0.5 * x @ matrix @ x - target @ x, matrix @ x - target),
        np.zeros(31),
        tolerance=1e-8,
    )
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), atol=1e-6)


def test_agrees_with_scipy_and_needs_few_evaluations():
    from scipy.optimize import minimize as peer

    scale = np.logspace(-2, 2, 37)  # steepest descent needs thousands of steps on this
    calls = []

    def objective(x):
        calls.append(0)
        soft = np.logaddexp(0, scale * x).sum() + 0.5 * (x**2).sum()
        return soft, scale * expit(scale * x) + x

    found = minimize(objective, np.ones(37), tolerance=1e-7)
    assert len(calls) < 150
    options = {"gtol": 1e-9, "ftol": 0}
    theirs = peer(objective, np.ones(37), jac=True, method="L-BFGS-B", options=options)
    np.testing.assert_allclose(found, theirs.x, atol=1e-5)


def test_start_at_the_minimum_stays():
    np.testing.assert_array_equal(minimize(lambda x: (x @ x, 2 * x), np.zeros(3)), np.zeros(3))


def test_ends_when_rounding_hides_descent():
    # The value is too large for its own differences to be seen, the gradient never gets below 0.
    found = minimize(lambda x: (1e20 + x @ x, 2 * x), np.ones(3), tolerance=0.0)
    assert np.isfinite(found).all()
