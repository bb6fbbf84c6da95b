"""How deep to think about a question, and who may be asked at that depth.

GRADE (arXiv 2607.10836): g^D = softmax(MLP(h)), sampled in training, argmax at inference. Depth 0:
the orchestrator M0 answers alone. Depth 1, the manager level [choice]: one manager's sub-pool,
neither cross-reading nor pruning. Depth 2: the whole pool, cross-reading, pruning.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gradejax.coordination.managers import TwoLayerMLP, membership

Array = jax.Array

ALONE, MANAGER, POOL = 0, 1, 2
NUM_DEPTHS = 3


class DepthGate(nn.Module):
    """h [..., d] → depth logits [..., 3]."""

    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, h: Array) -> Array:
        return TwoLayerMLP(NUM_DEPTHS, self.d, self.dtype, name="mlp")(h)


def allowed_depths(available: Array) -> Array:
    """Depths that somebody can serve.

    Args:
      available: bool [..., A+1], M0 last.

    Returns:
      bool [..., 3]: depth 0 needs M0, depths 1 and 2 some agent (every agent has a manager).
    """
    somebody = available[..., :-1].any(-1)
    return jnp.stack([available[..., -1], somebody, somebody], axis=-1)


def allowed_agents(
    depth: Array, manager: Array, available: Array, manager_of: tuple[int, ...], num_managers: int
) -> Array:
    """The agents that may be asked, given the depth and (at depth 1) the manager.

    Args:
      depth: int [...].
      manager: int [...], read at depth 1 only; a negative one has no sub-pool.
      available: bool [..., A+1] (M0 last), of one rank more than ``depth``; size-1 axes broadcast.

    Returns:
      bool [..., A]; empty at depth 0.
    """
    pools = jnp.asarray(membership(manager_of, num_managers))
    one_hot = jax.nn.one_hot(manager, num_managers, dtype=bool)  # a negative manager: all False
    own = (one_hot[..., :, None] & pools.reshape((1,) * manager.ndim + pools.shape)).any(-2)
    depth = depth[..., None]
    return available[..., :-1] & ((depth == POOL) | ((depth == MANAGER) & own))


def with_orchestrator(depth: Array, agents: Array) -> Array:
    """Members over A + 1 columns: the asked agents [..., A], or M0 (last) alone at depth 0.

    M0 is a member at depth 0 only: deeper it is paid for, but its answer is not combined.
    """
    alone = (depth == ALONE)[..., None]
    return jnp.concatenate([agents & ~alone, alone], axis=-1)
