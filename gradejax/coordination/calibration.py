"""Message calibration, so that a swapped expert speaks in the range the gates were trained on.

GRADE (arXiv 2607.10836): m̃ = γ ⊙ (m − μ̂)/σ̂ + β with running statistics per agent and dimension.
μ̂, σ̂ start from one pass over the training features and then move with momentum α once per batch.
No gradient goes through them.

Statistics travel as (count, sum, sum of squares) about a given shift, so that the sums of several
batches, or of several devices after a psum, simply add. Shifting by something near the mean keeps
the variance from cancelling in float32.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.ops import as_float, masked_sum, safe_divide

Array = jax.Array

SIGMA_FLOOR = 1e-3


@flax.struct.dataclass
class Calibration:
    """Running statistics; part of the train state, not of the parameters."""

    mean: Array  # [N, d] μ̂
    sigma: Array  # [N, d] σ̂, not floored: the floor belongs to its use


@flax.struct.dataclass
class Moments:
    """Masked sums over rows; add them with ``jax.tree.map`` or psum them."""

    count: Array  # [N] rows whose features exist
    total: Array  # [N, d] Σ (m − shift)
    square: Array  # [N, d] Σ (m − shift)²


def identity(num_agents: int, d: int, dtype: Any = jnp.float32) -> Calibration:
    """Statistics that leave messages as they are: mean 0, spread 1 (the "no calibration" row)."""
    return Calibration(
        mean=jnp.zeros((num_agents, d), dtype), sigma=jnp.ones((num_agents, d), dtype)
    )


def moments(messages: Array, available: Array, shift: Array) -> Moments:
    """Sums over the leading axes of all messages that exist, asked or not.

    Args:
      messages: [..., N, d] m.
      available: bool [..., N]; False for missing agents and padding rows.
      shift: [N, d]: the current mean, or any typical message; the same in sums to be added.
    """
    messages = as_float(jax.lax.stop_gradient(messages))
    lead = tuple(range(messages.ndim - 2))
    shift = shift.reshape((1,) * len(lead) + shift.shape)
    centred = messages - shift
    mask = jnp.broadcast_to(available[..., None], messages.shape)
    return Moments(
        count=available.sum(lead).astype(messages.dtype),
        total=masked_sum(centred, mask, lead),
        square=masked_sum(centred * centred, mask, lead),
    )


def typical(messages: Array, available: Array) -> Array:
    """A shift for the first pass [N, d]: each agent's mean over the rows given."""
    lead = tuple(range(messages.ndim - 2))
    messages = as_float(jax.lax.stop_gradient(messages))
    mask = jnp.broadcast_to(available[..., None], messages.shape)
    return safe_divide(masked_sum(messages, mask, lead), mask.sum(lead))


def from_moments(sums: Moments, shift: Array) -> Calibration:
    """Mean and spread (ddof 0) of the rows behind the sums; (shift, 1) for an agent without any.

    A single row has no spread: its mean counts, and σ̂ is 1 (0 would be floored, and every other
    message blown up a thousandfold).
    """
    count = sums.count[:, None]
    offset = safe_divide(sums.total, jnp.broadcast_to(count, sums.total.shape))
    square = safe_divide(sums.square, jnp.broadcast_to(count, sums.square.shape))
    variance = jnp.maximum(square - offset * offset, 0.0)
    # A square root at 0 has an infinite slope, but nothing here is differentiated.
    sigma = jnp.where(count > 1, jnp.sqrt(variance), 1.0)
    return Calibration(mean=shift + offset, sigma=sigma)


def update(state: Calibration, sums: Moments, alpha: float = 0.05) -> Calibration:
    """Moves the statistics by momentum: μ̂ ← (1 − α) μ̂ + α μ_batch, σ̂ likewise.

    Args:
      state: current statistics.
      sums: of the batch about ``state.mean`` (summed over all devices).
      alpha: in [0, 1]; GRADE uses .05.

    Returns:
      New statistics. An agent without rows keeps its own; with a single row only the mean moves,
      since one row has no spread and would pull σ̂ to 0.
    """
    batch = from_moments(sums, state.mean)
    count = sums.count[:, None]
    mean = state.mean + alpha * (batch.mean - state.mean)
    sigma = state.sigma + alpha * (batch.sigma - state.sigma)
    return Calibration(
        mean=jnp.where(count > 0, mean, state.mean),
        sigma=jnp.where(count > 1, sigma, state.sigma),
    )


class Calibrate(nn.Module):
    """m [..., N, d] → m̃ = γ ⊙ (m − μ̂)/max(σ̂, floor) + β, with learned γ (1) and β (0)."""

    num_agents: int
    d: int = 64
    floor: float = SIGMA_FLOOR
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, messages: Array, state: Calibration) -> Array:
        shape = (self.num_agents, self.d)
        gamma = self.param("gamma", nn.initializers.ones, shape, self.dtype)
        beta = self.param("beta", nn.initializers.zeros, shape, self.dtype)
        mean = jax.lax.stop_gradient(state.mean).astype(self.dtype)
        sigma = jnp.maximum(jax.lax.stop_gradient(state.sigma).astype(self.dtype), self.floor)
        lead = (1,) * (messages.ndim - 2)
        mean, sigma, gamma, beta = (x.reshape(lead + shape) for x in (mean, sigma, gamma, beta))
        return gamma * (messages - mean) / sigma + beta
