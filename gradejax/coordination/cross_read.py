"""Who reads whom among the asked agents: one Bernoulli decision for each ordered pair.

GRADE (arXiv 2607.10836): r_ab = σ((MLP([m̃_a; m̃_b]) + ε)/ν), ε ~ Logistic(0, 1); r_ab means that a
reads b and is row a of Z. The hard edge r_ab > ½ is exactly Bernoulli(σ(logit)) for every ν > 0,
because P(logit + ε > 0) = σ(logit). It is what is scored and what Z sees: a relaxed r in Z with the
score of the hard edge is biased. ``relaxation="concrete"`` instead feeds the relaxed r to Z with
its pathwise gradient and no score.

Edges exist between *distinct* members of S only; r_aa = 1 is added by ``read_matrix``. Logits are
[..., N, N] and members bool [..., N] (one rank less); size-1 axes broadcast.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.coordination.masks import aligned, not_negative
from gradejax.coordination.subset import Decisions
from gradejax.ops import as_float, log_sigmoids

Array = jax.Array

RELAXATIONS = ("hard", "concrete")


@flax.struct.dataclass
class Edges:
    """A draw of the edges; both are 0 outside the allowed pairs, the diagonal included."""

    hard: Array  # [..., N, N] bool, a (row) reads b (column)
    relaxed: Array  # [..., N, N] in [0, 1], differentiable with respect to the logits


class ReadGate(nn.Module):
    """Messages m̃ [..., N, d] → edge logits [..., N, N].

    The MLP on the pair [m̃_a; m̃_b], its first layer written as W_1 m̃_a + W_2 m̃_b + b: the same
    function without the [N, N, 2d] array of pairs.
    """

    d: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, messages: Array) -> Array:
        # lecun_normal over the 2d inputs of the pair, as one Dense on the concatenation would have.
        init = nn.initializers.variance_scaling(0.5, "fan_in", "truncated_normal")
        kwargs = {"dtype": self.dtype, "param_dtype": self.dtype}
        reader = nn.Dense(self.d, kernel_init=init, name="reader", **kwargs)(messages)
        read = nn.Dense(self.d, use_bias=False, kernel_init=init, name="read", **kwargs)(messages)
        hidden = nn.gelu(reader[..., :, None, :] + read[..., None, :, :], approximate=False)
        return nn.Dense(1, name="out", **kwargs)(hidden)[..., 0]


def allowed_pairs(members: Array) -> Array:
    """bool [..., N] → bool [..., N, N]: ordered pairs of distinct members."""
    size = members.shape[-1]
    distinct = ~jnp.eye(size, dtype=bool).reshape((1,) * (members.ndim - 1) + (size, size))
    return members[..., :, None] & members[..., None, :] & distinct


def sample(
    key, logits, members, *, temperature: float = 1.0, shape: tuple[int, ...] | None = None
) -> Edges:
    """Draws edges with logistic noise; the key is consumed.

    Args:
      logits: [..., N, N].
      members: bool [..., N].
      temperature: ν > 0; it shapes ``relaxed`` and cannot change the law of ``hard``.
      shape: batch shape (without N, N) to broadcast to; that of the arguments by default.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    logits, pairs = aligned(logits, allowed_pairs(members))
    shape = logits.shape[:-2] if shape is None else tuple(shape)
    noise = jax.random.logistic(key, (*shape, *logits.shape[-2:]), logits.dtype)
    return from_noise(noise, logits, members, temperature=temperature)


def from_noise(noise, logits, members, *, temperature: float = 1.0) -> Edges:
    """The edges that given Logistic(0, 1) noise [..., N, N] selects; ``sample`` without its key."""
    logits, pairs = aligned(logits, allowed_pairs(members))
    logits, pairs = jnp.broadcast_to(logits, noise.shape), jnp.broadcast_to(pairs, noise.shape)
    noisy = logits + noise
    relaxed = jnp.where(pairs, jax.nn.sigmoid(noisy / temperature), 0.0)
    return Edges(hard=pairs & (noisy > 0), relaxed=relaxed)


def mode(logits, members) -> Array:
    """Edges at inference: σ(logit) ≥ ½, no noise. bool [..., N, N]."""
    logits, pairs = aligned(logits, allowed_pairs(members))
    return pairs & (logits >= 0)


def read_matrix(edges, members) -> Array:
    """R for the combination: the edges among members, and r_aa = 1 (each reads itself).

    Args:
      edges: bool or float [..., N, N]; entries outside the pairs of members are ignored.
      members: bool [..., N].

    Returns:
      [..., N, N] of the edges' dtype.
    """
    size = members.shape[-1]
    pairs = allowed_pairs(members)
    own = jnp.eye(size, dtype=edges.dtype).reshape((1,) * (edges.ndim - 2) + (size, size))
    return jnp.where(pairs, edges, own)


def decisions(edges, logits, members) -> Decisions:
    """Log-probabilities [..., N, N] of the hard edges; ``free`` marks the allowed pairs."""
    pairs = allowed_pairs(members)
    on, off = log_sigmoids(_kept(logits, pairs))  # once for all rollouts that share the logits
    _, pairs, edges = aligned(logits, pairs, edges)
    return Decisions(log_probs=jnp.where(pairs, jnp.where(edges, on, off), 0.0), free=pairs)


def _kept(logits, pairs: Array) -> Array:
    """Logits with 0 where no set that shares them has the pair: whatever stands there is inert."""
    logits = as_float(logits)
    shared = tuple(i for i, n in enumerate(logits.shape) if n == 1 and i < pairs.ndim)
    return jnp.where(pairs.any(shared, keepdims=True), logits, 0.0)


def log_prob(edges, logits, members) -> Array:
    """log π(R | S) [...]: the sum over allowed pairs; 0 where S has fewer than two members."""
    return decisions(edges, logits, members).log_probs.sum((-2, -1))


def kl(p_logits, r_logits, members) -> Array:
    """KL(p‖r) of the edges given S [...]: the sum of Bernoulli divergences over allowed pairs.

    Conditional on S as recorded: the gradient through the chance of S itself is not part of it.
    """
    pairs = allowed_pairs(members)
    p_logits, r_logits = _kept(p_logits, pairs), _kept(r_logits, pairs)
    on, off = log_sigmoids(jnp.stack(jnp.broadcast_arrays(p_logits, r_logits)))
    terms = jnp.exp(on[0]) * (on[0] - on[1]) + jnp.exp(off[0]) * (off[0] - off[1])
    terms, pairs = aligned(terms, pairs)
    return not_negative(jnp.where(pairs, terms, 0.0).sum((-2, -1)))


def takes_part(members) -> Array:
    """bool [..., N] → [...]: S has at least two members, so that edges were drawn."""
    return members.sum(-1) > 1
