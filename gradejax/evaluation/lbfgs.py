"""L-BFGS for the small convex fits of the supervised routers.

scipy's L-BFGS-B solves little triangular systems by threaded LAPACK in every iteration; beside
another process on the same cores that took 23 ms an iteration where the arithmetic takes a fraction
of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np


def minimize(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    *,
    tolerance: float = 1e-5,
    iterations: int = 300,
    history: int = 10,
) -> np.ndarray:
    """The minimiser of a smooth convex function, by L-BFGS (Nocedal & Wright, algorithm 7.4).

    Step lengths by Armijo backtracking from 1; pairs without positive curvature are left out.

    Args:
        objective: x [n] -> (value, gradient [n]).
        start: [n] float64.
        tolerance: ends when no entry of the gradient is larger.
    Returns: [n], the point reached; also when `iterations` ran out or no step lowers the value.
    """
    x = np.array(start, float)
    value, gradient = objective(x)
    pairs: deque = deque(maxlen=history)
    for _ in range(iterations):
        if np.abs(gradient).max() <= tolerance:
            break
        step = -_inverse_hessian_times(gradient, pairs)
        slope = step @ gradient
        length = 1.0 if pairs else min(1.0, 1.0 / np.abs(gradient).sum())
        while True:
            new_value, new_gradient = objective(x + length * step)
            if new_value <= value + 1e-4 * length * slope:
                break
            length *= 0.5
            if length < 1e-10:  # the value no longer resolves the step: rounding, not descent
                return x
        moved, turned = length * step, new_gradient - gradient
        if moved @ turned > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(turned):
            pairs.append((moved, turned, 1.0 / (moved @ turned)))
        x, value, gradient = x + moved, new_value, new_gradient
    return x


def _inverse_hessian_times(gradient: np.ndarray, pairs) -> np.ndarray:
    """The two-loop recursion, newest pair first, then back."""
    q, weights = gradient.copy(), []
    for moved, turned, rho in reversed(pairs):
        weights.append(rho * (moved @ q))
        q -= weights[-1] * turned
    if pairs:
        moved, turned, _ = pairs[-1]
        q *= (moved @ turned) / (turned @ turned)
    for (moved, turned, rho), weight in zip(pairs, reversed(weights), strict=True):
        q += (weight - rho * (turned @ q)) * moved
    return q
