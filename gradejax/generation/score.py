"""log p of given tokens: of whole rows, and of groups of completions to shared prompts.

Neither holds [B, T, V] (``generation.head``). For the value and gradient of many rows in the
memory of a few, see ``generation.microbatch``.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from gradejax.generation.checks import number, whole
from gradejax.generation.head import token_logprobs
from gradejax.generation.loop import rows_lora
from gradejax.generation.prompts import ropes_by_length
from gradejax.models.attention import token_positions
from gradejax.models.cache import Part, tokens_before
from gradejax.models.decoder import Decoder
from gradejax.models.lora import Lora


def score(
    model: Decoder, params, tokens, mask, *, temperature: float = 1.0, chunk: int | None = None,
    vocab: int | None = None, lora: Lora | None = None, lengths=None,
):  # fmt: skip
    """Log-probability of every token given those before it in its row.

    Args:
      model: the decoder.
      params: its tree.
      tokens: [B, T] int32, prompt and reply; padding may stand on either side.
      mask: [B, T] bool, real tokens.
      temperature: > 0, the sampler's (fault A05).
      chunk: tokens whose logits are held at once.
      vocab: the sampler's: ids from here on have probability 0 (B10).
      lora: adapters with weights [B, n].
      lengths: [B] or [B, T] int32, for rotary scalings that depend on the length
        (``Rope.by_length``): by default each row's own for all of its tokens, as transformers
        reads a whole row. ``lengths_as_drawn`` has what sampling had.

    Returns:
      [B, T] float32; place t holds log p(token t | before t), 0 at a row's first token (it has
      none, fault B02) and at padding.

    Raises:
      ValueError: no integers [B, T] with a mask of that shape, or settings out of range.
    """
    temperature, chunk, vocab = _checked(temperature, chunk, vocab)
    tokens, mask = _rows(tokens, mask)
    hidden = model.apply(params, tokens, mask, lora=lora, lengths=lengths, method="hidden")
    out = token_logprobs(model, params, hidden[:, :-1], tokens[:, 1:], temperature=temperature,
                         vocab=vocab, chunk=chunk)  # fmt: skip
    known = mask[:, 1:] & mask[:, :-1]
    return jnp.pad(jnp.where(known, out, 0), ((0, 0), (1, 0)))


def _checked(temperature, chunk, vocab):
    return (number("temperature", temperature, "a number > 0 to score", 0, above=True),
            None if chunk is None else whole("chunk", chunk),
            None if vocab is None else whole("vocab", vocab))  # fmt: skip


def _rows(tokens, mask):
    """Tokens and mask as arrays, [..., T] of integers and of bool."""
    try:
        tokens, mask = jnp.asarray(tokens), jnp.asarray(mask)
    except (TypeError, ValueError):
        raise ValueError(
            f"expected tokens and their mask as arrays of one shape, got {type(tokens).__name__} "
            f"and {type(mask).__name__}"
        ) from None
    whole_numbers = jnp.issubdtype(tokens.dtype, jnp.integer)
    if tokens.ndim < 2 or mask.shape != tokens.shape or not whole_numbers:
        raise ValueError(
            f"expected integer tokens [B, T] and their mask of one shape, got {tokens.dtype} "
            f"{tokens.shape} and {mask.shape}"
        )
    return tokens, mask.astype(bool)


def lengths_as_drawn(prompt_lengths, mask):
    """The length that each token's row had when it was read in sampling, [B, T] int32.

    The prompt is read whole, so its keys turn by its own length; a reply's token by its place.

    Args:
      prompt_lengths: [B] real tokens of each prompt.
      mask: [B, T] bool, prompt and reply.
    """
    return jnp.maximum(token_positions(mask) + 1, prompt_lengths[:, None])


def last_real(states, mask):
    """States [P, T, E] at each row's last real place, [P, E]; place 0 of an empty row."""
    places = jnp.where(mask, jnp.arange(mask.shape[1])[None, :], 0)
    return jnp.take_along_axis(states, jnp.max(places, axis=1)[:, None, None], axis=1)[:, 0]


def score_groups(
    model: Decoder, params, prompts, prompt_mask, completions, completion_mask, *,
    temperature: float = 1.0, chunk: int | None = None, vocab: int | None = None,
    lora: Lora | None = None, soft=None, soft_of=None, parts: Sequence[Part] = (),
):  # fmt: skip
    """Log-probabilities of G completions to each of P prompts; a prompt is read once.

    Its keys and values stand as one row that the G completions read, forward and backward: the
    values and gradients of P·G whole rows without their P·(G - 1) repeated prompts. Completions
    count their positions on from the prompt and its soft prefix, as sampling does.

    A rotary scaling that depends on the length of the row (``Rope.by_length``) takes the prompt's
    own length for the prompt and each completion token's place for it, as cached decoding does.

    Args:
      model: the decoder.
      params: its tree.
      prompts: [P, T] int32; padding may stand on either side.
      prompt_mask: [P, T] bool.
      completions: [P, G, C] int32, each from place 0 on.
      completion_mask: [P, G, C] bool, true up to and with the stop token (B04).
      temperature: > 0, the sampler's (A05).
      chunk: tokens whose logits are held at once.
      vocab: the sampler's (B10).
      lora: adapters with weights [P, n], one row a prompt as in ``generate``.
      soft: None or [n, m, E], embeddings that follow the prompt; one a prompt unless soft_of.
      soft_of: None or [P] int32, each prompt's row of ``soft``.
      parts: what stands before every prompt, such as a system prompt that was read by
        ``Decoder.prefill``.

    Returns:
      [P, G, C] float32; 0 where the mask is false.

    Raises:
      ValueError: shapes that do not fit, or a temperature that is not above 0.
    """
    temperature, chunk, vocab = _checked(temperature, chunk, vocab)
    prompts, prompt_mask = _rows(prompts, prompt_mask)
    if jnp.ndim(completions) != 3:
        raise ValueError(f"expected completions [P, G, C], got {jnp.shape(completions)}")
    completions, completion_mask = _rows(completions, completion_mask)
    count, samples, length = completions.shape
    if prompts.shape[0] != count or completion_mask.shape != completions.shape:
        raise ValueError(
            f"expected completions and their mask [P, G, C] of the P prompts {prompts.shape}; got "
            f"{completions.shape} and {completion_mask.shape}"
        )
    embeds = model.apply(params, prompts, method="embed")
    if soft is not None:
        soft = soft if soft_of is None else soft[soft_of]
        if soft.shape[0] != count:
            raise ValueError(f"expected one soft prefix a prompt ({count}), got {soft.shape[0]}")
        embeds = jnp.concatenate([embeds, soft.astype(embeds.dtype)], axis=1)
        prompt_mask = jnp.concatenate(
            [prompt_mask, jnp.ones((count, soft.shape[1]), bool)], axis=1
        )
    states, part = model.apply(params, None, prompt_mask, embeds=embeds, parts=parts, lora=lora,
                               method="prefill")  # fmt: skip
    # The state before a completion's first token is the prompt's last.
    before = jnp.repeat(last_real(states, prompt_mask)[:, None, None], samples, axis=1)
    if length > 1:
        rows = lambda x: x[:, :, :-1].reshape(count * samples, length - 1)  # noqa: E731
        lengths = None
        if ropes_by_length(model.config):
            before_each = tokens_before((*parts, part), count * samples)
            lengths = before_each[:, None] + token_positions(rows(completion_mask)) + 1
        hidden = model.apply(params, rows(completions), rows(completion_mask),
                             parts=(*parts, part), lora=rows_lora(lora, samples),
                             lengths=lengths, method="hidden")  # fmt: skip
        hidden = hidden.reshape(count, samples, length - 1, -1)
        before = jnp.concatenate([before, hidden], axis=2)
    out = token_logprobs(model, params, before, completions, temperature=temperature, vocab=vocab,
                         chunk=chunk)  # fmt: skip
    return jnp.where(completion_mask, out, 0)
