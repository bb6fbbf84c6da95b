"""From the kept agents' messages and answers to one distribution over candidate answers.

GRADE (arXiv 2607.10836): Z = softmax((M̃ W_Q)(M̃ W_K)ᵀ/√d ⊙ R)(M̃ W_V); z̄ is the mean of z over K
weighted by stop_gradient(v); w_a = softplus(⟨ω, z_a⟩ + b);

    g_a(c) = ⟨W_a m̃_a, u_c⟩/√d + b_a·1[y_a = c]                    (agent head)
    g(c)   = ⟨W_ω [z̄; h], u_c⟩/√d + Σ_{a∈K} w_a g_a(c)             (system)

Letters of the einsums: g rollouts, a and b agents (N = A + 1, M0 last), c candidates, d width.
Everything before R depends on the question only and is computed once for its G rollouts.

Departures: ``read_mask="additive"`` gives a closed edge −∞, as printed ("multiplicative") it still
gets weight e⁰. A null candidate with a learned logit is appended as the last column [choice]. The
start is exactly a vote: W_a = W_ω = ω = 0, b_a = 1, softplus(b) = 1 [choice].
"""

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.ops import as_float, masked_log_softmax, safe_divide, safe_log

Array = jax.Array

NO_ANSWER = -1
READ_MASKS = ("additive", "multiplicative")


@flax.struct.dataclass
class Combined:
    """What the combination made of the G rollouts of a question."""

    logits: Array  # [..., G, C+1] g(c), the null last; entries outside `candidates` mean nothing
    agent_logits: Array  # [..., N, C+1] g_a(c) of every agent, the null last
    candidates: Array  # [..., G, C+1] bool, what may be answered
    states: Array  # [..., G, N, d] z_a; 0 outside S
    pooled: Array  # [..., G, d] z̄
    weights: Array  # [..., G, N] w_a; 0 outside K


def attend(logits: Array, values: Array, read: Array, members: Array, read_mask: str) -> Array:
    """Rows of Z for the members of S: softmax over the members' columns, masked by R.

    Args:
      logits: [..., N, N] (M̃ W_Q)(M̃ W_K)ᵀ/√d.
      values: [..., N, d] M̃ W_V.
      read: [..., G, N, N] R, bool or relaxed in [0, 1]; row a reads column b; the diagonal is 1.
      members: bool [..., G, N] S.
      read_mask: "additive" (logits + log R) or "multiplicative" (logits · R).

    Returns:
      [..., G, N, d]; zero rows for agents outside S and where nothing is readable.
    """
    if read_mask not in READ_MASKS:
        raise ValueError(f"read_mask must be one of {READ_MASKS}; got {read_mask!r}")
    logits, read = logits[..., None, :, :], read.astype(logits.dtype)
    pairs = members[..., :, None] & members[..., None, :]
    if read_mask == "additive":
        pairs = pairs & (read > 0)
        scores = logits + safe_log(read)
    else:
        scores = logits * read
    log_weights = masked_log_softmax(jnp.broadcast_to(scores, pairs.shape), pairs)
    weights = jnp.where(pairs, jnp.exp(log_weights), 0.0)
    return jnp.einsum("...gab,...bd->...gad", weights, values)


def candidate_set(answers: Array, candidate_mask: Array, choices: Array, kept: Array) -> Array:
    """The candidates of each rollout, the null in the last column.

    Multiple choice: all options. Open answers: those of the agents in K, and the null. A row
    without any real candidate has the null alone, so no row is ever empty.

    Args:
      answers: int [..., N], candidate index of each agent or NO_ANSWER.
      candidate_mask: bool [..., C].
      choices: bool [...].
      kept: bool [..., G, N] K.

    Returns:
      bool [..., G, C+1].
    """
    given = jax.nn.one_hot(answers, candidate_mask.shape[-1], dtype=bool)  # [..., N, C]
    by_kept = (kept[..., :, :, None] & given[..., None, :, :]).any(-2)  # [..., G, C]
    choices = choices[..., None, None]
    real = candidate_mask[..., None, :] & (choices | by_kept)
    null = ~choices | ~real.any(-1, keepdims=True)
    return jnp.concatenate([real, jnp.broadcast_to(null, (*real.shape[:-1], 1))], axis=-1)


class Combination(nn.Module):
    """The answering part: QKV, agent heads, system head, candidate map W_c and the null's logit.

    Attributes:
      num_agents: N = A + 1, M0 included.
      d: width of messages, z and u.
      read_mask: one of READ_MASKS.
    """

    num_agents: int
    d: int = 64
    read_mask: str = "additive"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        h: Array,
        messages: Array,
        answers: Array,
        embeddings: Array,
        candidate_mask: Array,
        choices: Array,
        members: Array,
        kept: Array,
        read: Array,
        keep_probs: Array,
    ) -> Combined:
        """Scores the candidates of G rollouts of each question; leading axes (Q) are free.

        Args:
          h: [..., d].
          messages: [..., N, d] m̃, M0 last.
          answers: int [..., N] candidate index of each agent, or NO_ANSWER.
          embeddings: [..., C, D_c] frozen embeddings of the candidates' texts.
          candidate_mask: bool [..., C].
          choices: bool [...], multiple choice.
          members: bool [..., G, N] S; {M0} at depth 0.
          kept: bool [..., G, N] K ⊆ S.
          read: bool or float [..., G, N, N] R with a unit diagonal (``cross_read.read_matrix``).
          keep_probs: [..., G, N] v ≥ 0, weights of z̄; no gradient passes. All ones for a plain
            mean (depths 0 and 1).
        """
        kwargs = {"use_bias": False, "dtype": self.dtype, "param_dtype": self.dtype}
        zeros, scale = nn.initializers.zeros, 1.0 / math.sqrt(self.d)
        kept = kept & members

        query = nn.Dense(self.d, name="query", **kwargs)(messages)
        key = nn.Dense(self.d, name="key", **kwargs)(messages)
        value = nn.Dense(self.d, name="value", **kwargs)(messages)
        attention = jnp.einsum("...ad,...bd->...ab", query, key) * scale
        states = attend(attention, value, read, members, self.read_mask)

        # Candidates that do not exist are zeroed before W_c: whatever stands there is inert.
        texts = jnp.where(candidate_mask[..., None], embeddings.astype(self.dtype), 0.0)
        u = nn.Dense(self.d, name="candidate", **kwargs)(texts)  # [..., C, d]
        null = self.param("null", zeros, (), self.dtype)

        heads = self.param("agent_heads", zeros, (self.num_agents, self.d, self.d), self.dtype)
        trust = self.param("agent_bias", nn.initializers.ones, (self.num_agents,), self.dtype)
        said = jax.nn.one_hot(answers, u.shape[-2], dtype=u.dtype)  # NO_ANSWER: a row of zeros
        voices = jnp.einsum("...ad,ade->...ae", messages, heads)
        agent_logits = jnp.einsum("...ae,...ce->...ac", voices, u) * scale
        agent_logits = agent_logits + jnp.einsum("a,...ac->...ac", trust, said)

        omega = self.param("weight", zeros, (self.d,), self.dtype)
        one = nn.initializers.constant(math.log(math.e - 1.0))  # softplus of it is 1
        bias = self.param("weight_bias", one, (), self.dtype)
        weights = jax.nn.softplus(jnp.einsum("...gad,d->...ga", states, omega) + bias)
        weights = jnp.where(kept, weights, 0.0)

        share = jnp.where(kept, jax.lax.stop_gradient(as_float(keep_probs)), 0.0)
        share = safe_divide(share, share.sum(-1, keepdims=True)).astype(states.dtype)
        pooled = jnp.einsum("...ga,...gad->...gd", share, states)
        context = jnp.broadcast_to(h[..., None, :], (*pooled.shape[:-1], h.shape[-1]))
        system = nn.Dense(self.d, kernel_init=zeros, name="system", **kwargs)(
            jnp.concatenate([pooled, context.astype(pooled.dtype)], axis=-1)
        )
        logits = jnp.einsum("...gd,...cd->...gc", system, u) * scale
        logits = logits + jnp.einsum("...ga,...ac->...gc", weights, agent_logits)
        return Combined(
            logits=_with_null(logits, null),
            agent_logits=_with_null(agent_logits, null),
            candidates=candidate_set(answers, candidate_mask, choices, kept),
            states=states,
            pooled=pooled,
            weights=weights,
        )


def _with_null(logits: Array, null: Array) -> Array:
    column = jnp.broadcast_to(null.astype(logits.dtype), (*logits.shape[:-1], 1))
    return jnp.concatenate([logits, column], axis=-1)


def log_probs(combined: Combined) -> Array:
    """log p_Θ [..., G, C+1] over each rollout's candidates; −inf (zero gradient) elsewhere."""
    return masked_log_softmax(combined.logits, combined.candidates)


def agent_log_probs(combined: Combined) -> Array:
    """log p_a [..., G, N, C+1]: each agent's own head over the candidates of the rollout.

    With the same null logit as the system [choice], so that an agent that gave no answer is not
    forced to favour one. −inf outside the candidates.
    """
    allowed = combined.candidates[..., :, None, :]
    logits = combined.agent_logits[..., None, :, :]
    shape = (*allowed.shape[:-2], *logits.shape[-2:])
    return masked_log_softmax(jnp.broadcast_to(logits, shape), jnp.broadcast_to(allowed, shape))


def answer(combined: Combined, answers: Array, choices: Array, kept: Array) -> Array:
    """ŷ int32 [..., G]: the best real candidate, or NO_ANSWER when there is none.

    The null is never chosen over a real candidate. Ties go to the lowest option in multiple choice,
    else to the candidate of the lowest agent *in K*: the columns are ordered by the lowest agent of
    the pool that gave them, so the lowest column would let an agent that was never asked decide.
    Logits within a few roundings of the best count as tied, or the order of summation would.

    Args:
      combined: as returned.
      answers: int [..., N].
      choices: bool [...].
      kept: bool [..., G, N] K.
    """
    logits, real = combined.logits[..., :-1], combined.candidates[..., :-1]
    num_agents, num_candidates = kept.shape[-1], logits.shape[-1]
    best = jnp.where(real, logits, -jnp.inf).max(-1, keepdims=True)
    slack = 8 * jnp.finfo(logits.dtype).eps * jnp.maximum(1.0, jnp.abs(best))
    tied = real & (logits >= best - slack)
    given = jax.nn.one_hot(answers, num_candidates, dtype=bool)[..., None, :, :] & kept[..., None]
    first = jnp.where(given.any(-2), jnp.argmax(given, axis=-2), num_agents)  # [..., G, C]
    option = jnp.arange(num_candidates).reshape((1,) * (first.ndim - 1) + (-1,))
    rank = jnp.where(choices[..., None, None], option, first)
    worst = num_agents + num_candidates
    chosen = jnp.argmin(jnp.where(tied, rank, worst), axis=-1)
    return jnp.where(real.any(-1), chosen, NO_ANSWER).astype(jnp.int32)


def right_columns(gold: Array, columns: int) -> Array:
    """[..., C] bool, the right candidates, of gold in either form (see ``Records.gold``)."""
    return gold if gold.dtype == bool else jax.nn.one_hot(gold, columns, dtype=bool)


def is_right(answer: Array, gold: Array, columns: int) -> Array:
    """Whether each rollout's answer, int [..., G] or NO_ANSWER, is a right candidate; bool."""
    said = jax.nn.one_hot(answer, columns, dtype=bool)  # NO_ANSWER is no column
    return (said & right_columns(gold, columns)[..., None, :]).any(-1)


def gold_log_prob(log_p: Array, gold: Array, candidates: Array) -> tuple[Array, Array]:
    """The log-probability of a right answer, read from ``log_probs`` or ``agent_log_probs``.

    Args:
      log_p: [..., G, C+1], or [..., G, N, C+1] of the agents.
      gold: bool [..., C] or int [...], see ``Records.gold``.
      candidates: bool [..., G, C+1].

    Returns:
      value [..., G] or [..., G, N]: of gold where it is a candidate (of several, that the answer is
      one of them), else of the null; 0 with a zero gradient where neither is (multiple choice
      without a gold option: nothing to learn).
      present [..., G]: gold is a candidate; the reward uses its clamp where it is not.
    """
    null = candidates.shape[-1] - 1
    right = right_columns(gold, null)[..., None, :] & candidates[..., :null]
    present = right.any(-1)
    right = jnp.concatenate([right, ~present[..., None] & candidates[..., null:]], axis=-1)
    known = right.any(-1)
    if log_p.ndim == candidates.ndim + 1:
        right, known = right[..., None, :], known[..., None]
    # Of a single one this is its log-probability itself: log 1 is added. The gradient is a
    # selection, not the scatter that a gather would have.
    top = jax.lax.stop_gradient(jnp.where(right, log_p, -jnp.inf).max(-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    share = jnp.where(right, jnp.exp(jnp.where(right, log_p, 0.0) - top), 0.0).sum(-1)
    value = jnp.where(known, jnp.log(jnp.where(known, share, 1.0)) + top[..., 0], 0.0)
    return value, present
