"""From logits to a token and its log-probability under the distribution that drew it.

The log-probability is that of the *sampling* distribution: temperature applied, cut tokens out,
the rest renormalised, so that a trainer that recomputes it the same way gets ratio 1 on unchanged
weights (fault A05). Greedy decoding reports the plain softmax's.
"""

import dataclasses

import jax
import jax.numpy as jnp

from gradejax.generation.checks import number, whole

# Between them logits divided by a temperature are float32 numbers, neither infinite nor all 0.
_COLDEST, _HOTTEST = 1e-30, 1e30


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a reply is drawn.

    Attributes:
      temperature: logits are divided by it; 0 is greedy.
      top_k: keep the k most probable tokens; 0 keeps all.
      top_p: keep the smallest set of most probable tokens that reaches this mass; 1 keeps all.

    Raises:
      ValueError: a temperature that is no number >= 0 (nor one that float32 can divide by), a
        top_k that is no whole number >= 0, or a top_p outside of (0, 1].
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        span = f"a number >= 0 (0 is greedy; others from {_COLDEST} to {_HOTTEST})"
        cold = number("temperature", self.temperature, span, 0, _HOTTEST)
        checked = {
            "temperature": cold and number("temperature", cold, span, _COLDEST),
            "top_k": whole("top_k (0 keeps all)", self.top_k, 0),
            "top_p": number("top_p", self.top_p, "a number in (0, 1]", 0, 1, above=True),
        }
        for name, value in checked.items():  # NumPy's numbers become Python's
            object.__setattr__(self, name, value)


GREEDY = Sampling(temperature=0.0)
_HEAD = 64  # most probable tokens in which top-p is looked for first in a large vocabulary
_SMALL = 4096  # up to here looking for them takes longer than bisection


def _nucleus(logits, top_p: float):
    """The smallest set of most probable tokens that reaches top_p, [..., V] bool; see ``cut``."""
    # A set that reaches top_p but for the sum's rounding has reached it. Some mass it must have: a
    # top_p that is 0 in float32 would keep nothing.
    bar = max(top_p * (1 - 1e-6), 1e-30)
    # The two zeros are equal, as other ties are; their bits, and ``top_k``'s order, say otherwise.
    logits = jnp.where(logits == 0, 0.0, logits)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)

    def keep_of_head():
        values, ids = jax.lax.top_k(logits, _HEAD)  # of equal values the lower id comes first
        mass = jnp.exp(values - total)
        before = jnp.cumsum(mass, axis=-1) - mass
        last = jnp.sum(before < bar, axis=-1, keepdims=True) - 1
        value = jnp.take_along_axis(values, last, axis=-1)
        edge = jnp.take_along_axis(ids, last, axis=-1)
        places = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,))
        return (logits > value) | ((logits == value) & (places <= edge))

    def keep_by_bisection():
        # Sorting costs several times the model's step. The set's lowest logit is found bit by bit
        # instead: among the float32 numbers, in their order, the greatest at and above which
        # there is mass enough.
        key = _in_order(logits.astype(jnp.float32))
        mass = jnp.exp(logits - total)
        above = lambda where: jnp.sum(  # noqa: E731
            jnp.where(where, mass, 0), axis=-1, keepdims=True
        )

        def halve(_, ends):
            low, high = ends
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            enough = above(key >= middle) >= bar
            return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

        ends = tuple(_in_order(jnp.full((*logits.shape[:-1], 1), x, jnp.float32))
                     for x in (-jnp.inf, jnp.inf))  # fmt: skip
        edge, _ = jax.lax.fori_loop(0, 32, halve, ends)
        tie = key == edge
        earlier = (jnp.cumsum(tie, axis=-1) - tie).astype(mass.dtype)  # ties of lower id
        return (key > edge) | (tie & (above(key > edge) + earlier * mass < bar))

    if logits.shape[-1] <= _SMALL:
        return keep_by_bisection()
    head = jnp.exp(jax.lax.top_k(logits, _HEAD)[0] - total).sum(-1)
    return jax.lax.cond(jnp.all(head >= top_p), keep_of_head, keep_by_bisection)


def _in_order(x):
    """int32 in the same order as the float32 numbers x."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def cut(logits, *, top_k: int = 0, top_p: float = 1.0):
    """Logits with the tokens that top-k and top-p leave out at -inf.

    Top-k first, then top-p on what it kept, renormalised. A token is kept while the mass *before*
    it is under top_p: the smallest set that reaches it, at least one token (fault B07). Ties at
    the k-th place are all kept; of ties at the edge of top_p, the lowest ids.

    Args:
      logits: [..., V] float32, already divided by the temperature.
      top_k: 0 keeps all.
      top_p: 1 keeps all.
    """
    if top_k and top_k < logits.shape[-1]:
        bar = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < bar, -jnp.inf, logits)
    if top_p < 1.0:
        logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    return logits


def sample(
    logits, seeds, place, temperatures, *, top_k=0, top_p=1.0, vocab=None
):  # fmt: skip
    """Draw one token a row.

    A row's noise depends on its seed and on the token's place in its reply alone: the same row
    draws the same tokens whatever batch it stands in (faults B09, T25).

    Args:
      logits: [B, V].
      seeds: [B] uint32 or int32, one a row.
      place: int32, scalar or [B], index of the token in the reply.
      temperatures: [B] float32; 0 is greedy and uses no noise.
      top_k: static.
      top_p: static.
      vocab: ids from here on have probability 0 (embedding rows beyond the tokenizer, B10).

    Returns:
      tokens [B] int32, their log-probabilities [B] float32.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if vocab is not None and vocab < logits.shape[-1]:
        logits = jnp.where(jnp.arange(logits.shape[-1])[None, :] < vocab, logits, -jnp.inf)
    cold = temperatures == 0
    scaled = cut(logits / jnp.where(cold, 1.0, temperatures)[:, None], top_k=top_k, top_p=top_p)
    noise = jax.vmap(
        lambda s, p: jax.random.gumbel(
            jax.random.fold_in(jax.random.key(s), p), logits.shape[-1:], logits.dtype
        )
    )(seeds, jnp.broadcast_to(place, seeds.shape))
    tokens = jnp.argmax(jnp.where(cold[:, None], logits, scaled + noise), axis=-1)
    plain = jax.nn.log_softmax(jnp.where(cold[:, None], logits, scaled), axis=-1)
    logprobs = jnp.take_along_axis(plain, tokens[:, None], axis=-1)[:, 0]
    return tokens.astype(jnp.int32), logprobs
