"""Generalised advantage estimation."""

import jax
import jax.numpy as jnp

from gradejax import ops

Array = jax.Array


def generalized_advantages(
    rewards, values, bootstrap_value, mask, *, discount, lambda_: float
) -> tuple[Array, Array]:
    """Computes A_t = δ_t + γ_t λ A_{t+1}, δ_t = r_t + γ_t V_{t+1} − V_t, for one trajectory.

    Schulman et al., arXiv 1506.02438, eq. 16. Unlike the paper the discount may change with time
    (0 after a terminal step). Masked steps are skipped: "t + 1" is the next *unmasked* step, so
    holes (tool or prompt tokens) and padding at either end leave the other steps as they were. A
    reward on a masked step is therefore ignored: put a final reward on the last unmasked one.
    ``vmap`` over trajectories.

    Args:
      rewards: [T] reward received after step t.
      values: [T] value estimate at step t.
      bootstrap_value: [] value of the state after the last unmasked step; 0 if it is terminal.
      mask: [T] bool.
      discount: γ, scalar or [T], in [0, 1].
      lambda_: in [0, 1]; 1 gives return − value, 0 the one-step temporal difference.

    Returns:
      (advantages [T], returns [T] = advantages + values), 0 at masked steps, without gradient.
    """
    rewards, values = ops.as_float(rewards), ops.as_float(values)
    mask = jnp.asarray(mask, bool)
    if rewards.ndim != 1 or not rewards.shape == values.shape == mask.shape:
        raise ValueError(
            "rewards, values and mask must be [T] (vmap over trajectories); got "
            f"{rewards.shape}, {values.shape}, {mask.shape}"
        )
    dtype = jnp.result_type(rewards, values)
    discounts = jnp.broadcast_to(jnp.asarray(discount, dtype), rewards.shape)
    rewards = jnp.where(mask, rewards, 0.0).astype(dtype)
    values = jnp.where(mask, values, 0.0).astype(dtype)

    def step(carry, inputs):
        next_advantage, next_value = carry
        reward, value, gamma, valid = inputs
        advantage = reward + gamma * next_value - value + gamma * lambda_ * next_advantage
        carry = (
            jnp.where(valid, advantage, next_advantage),
            jnp.where(valid, value, next_value),
        )
        return carry, jnp.where(valid, advantage, 0.0)

    start = (jnp.zeros((), dtype), jnp.asarray(bootstrap_value, dtype))
    _, advantages = jax.lax.scan(step, start, (rewards, values, discounts, mask), reverse=True)
    returns = jnp.where(mask, advantages + values, 0.0)
    return jax.lax.stop_gradient((advantages, returns))
