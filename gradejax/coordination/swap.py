"""Fitting a new expert's features to the messages of the agent that it replaces.

Host code in float64 (numpy): done once a swap, on at most a few dozen anchor questions. ``keep``
(the widths match: Φ is left as it is) needs no code; this is ``ridge`` [choice].
"""

from typing import NamedTuple

import numpy as np


class Alignment(NamedTuple):
    """An affine map for ``Adapters``: messages = features @ kernel + bias."""

    kernel: np.ndarray  # [D, d]
    bias: np.ndarray  # [d]
    penalty: float  # λ
    loo_error: float  # mean squared leave-one-out error at λ, on the rows of the fit
    held_out_r2: float  # of the map fitted without the held-out rows; NaN when there are none


def r_squared(predicted: np.ndarray, target: np.ndarray) -> float:
    """1 − Σ‖target − predicted‖² / Σ‖target − its mean‖², over rows [n] and dimensions [d] at once.

    0 is as good as the mean; negative is worse. NaN where the target does not vary.
    """
    residual = np.sum((target - predicted) ** 2)
    spread = np.sum((target - target.mean(0)) ** 2)
    return float(1.0 - residual / spread) if spread > 0 else float("nan")


def ridge(
    features: np.ndarray, messages: np.ndarray, penalties: np.ndarray | None = None
) -> Alignment:
    """Ridge regression with an intercept, in the dual, λ by leave-one-out in closed form.

    With centred X, Y and K = XXᵀ = QΛQᵀ: fitted values are H Y, H = Q Λ(Λ + λ)⁻¹ Qᵀ; the intercept
    adds 1/n to the leverage, and the left-out residual of row i is (y_i − ŷ_i)/(1 − 1/n − H_ii).

    Args:
      features: [n, D] of the new expert, n ≥ 3.
      messages: [n, d] of the agent it replaces, on the same questions.
      penalties: λ > 0 to choose from; by default 10^−6…10^3 times the mean eigenvalue of K.
    """
    x, y = np.asarray(features, np.float64), np.asarray(messages, np.float64)
    n = len(x)
    if n < 3 or len(y) != n:
        raise ValueError(
            f"ridge needs at least 3 anchors with features and messages of equal number; got "
            f"features {x.shape} and messages {y.shape}"
        )
    x_mean, y_mean = x.mean(0), y.mean(0)
    centred, target = x - x_mean, y - y_mean
    eigenvalues, vectors = np.linalg.eigh(centred @ centred.T)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    if penalties is None:
        scale = eigenvalues.mean() or 1.0
        penalties = scale * np.logspace(-6, 3, 37)
    rotated = vectors.T @ target
    errors = []
    for penalty in penalties:
        shrink = eigenvalues / (eigenvalues + penalty)
        residual = target - vectors @ (shrink[:, None] * rotated)
        leverage = 1.0 / n + (vectors**2) @ shrink
        errors.append(np.mean((residual / (1.0 - leverage)[:, None]) ** 2))
    best = int(np.argmin(errors))
    dual = vectors @ (rotated / (eigenvalues + penalties[best])[:, None])
    kernel = centred.T @ dual
    return Alignment(
        kernel, y_mean - x_mean @ kernel, float(penalties[best]), float(errors[best]), float("nan")
    )


def align(features: np.ndarray, messages: np.ndarray, held_out: np.ndarray) -> Alignment:
    """Fits on all anchors; reports R² of a fit without the held-out ones, on those.

    Args:
      features: [n, D].
      messages: [n, d].
      held_out: bool [n].
    """
    held_out = np.asarray(held_out, bool)
    fit = ridge(features, messages)
    if not held_out.any():
        return fit
    part = ridge(features[~held_out], messages[~held_out])
    predicted = np.asarray(features[held_out], np.float64) @ part.kernel + part.bias
    return fit._replace(
        held_out_r2=r_squared(predicted, np.asarray(messages[held_out], np.float64))
    )
