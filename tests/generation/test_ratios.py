"""Log-probabilities of drawing are those of reading, in every family: ratios of 1 (T7, A05)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import NAMES, checkpoint, rows_of

from gradejax.generation.decode import generate
from gradejax.generation.head import token_logprobs
from gradejax.generation.prompts import left_pad
from gradejax.generation.sampling import Sampling
from gradejax.generation.score import lengths_as_drawn, score, score_groups

NEW, SAMPLES = 9, 3


def read_again(model, params, prompts, soft, completions, mask):
    """[P, G, C] twice: over shared prompts, and of whole rows [prompt; soft; completion]."""

    @jax.jit
    def read(params, tokens, real, soft):
        shared = score_groups(model, params, tokens, real, completions, mask, soft=soft)
        count = len(prompts) * SAMPLES
        rows, rows_mask = completions.reshape(count, NEW), mask.reshape(count, NEW)
        embed = lambda x: model.apply(params, x, method="embed")  # noqa: E731
        before, seen = [embed(tokens)], [real]
        if soft is not None:
            before.append(soft)
            seen.append(jnp.ones(soft.shape[:2], bool))
        repeat = lambda xs: jnp.repeat(jnp.concatenate(xs, axis=1), SAMPLES, axis=0)  # noqa: E731
        embeds = jnp.concatenate([repeat(before), embed(rows)], axis=1)
        seen = jnp.concatenate([repeat(seen), rows_mask], axis=1)
        hidden = model.apply(params, None, seen, embeds=embeds, method="hidden")
        whole = token_logprobs(model, params, hidden[:, -NEW - 1 : -1], rows)
        return shared, jnp.where(mask, whole.reshape(mask.shape), 0)

    return read(params, *map(jnp.asarray, left_pad(prompts, len(prompts), 24)), soft)


@pytest.mark.parametrize("places", [0, 1, 4])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("llama_linear", "llama_sharded")])
def test_ratios_are_one_in_every_family(name, places):
    """Prompts of 23, 20 and 7 tokens with replies of up to 9, past the windows where there are
    some (7 keys), 3 samples each, behind soft prefixes of none, one and four places."""
    ckpt, prompts = checkpoint(name), rows_of(name)
    soft = None
    if places:
        rng = np.random.default_rng(places)
        scale = np.asarray(ckpt.model.apply(ckpt.params, jnp.arange(8)[None], method="embed")).std()
        soft = scale * rng.normal(size=(3, places, ckpt.config.width)).astype(np.float32)
    replies = generate(
        ckpt.model, ckpt.params, prompts, max_new_tokens=NEW, stop_ids=(7, 8), seeds=[4, 5, 6],
        sampling=Sampling(), samples=SAMPLES, batch_size=9, soft=soft, pooling=None,
    )  # fmt: skip
    completions, drawn = np.zeros((9, NEW), np.int32), np.zeros((9, NEW))
    for i, reply in enumerate(replies):
        completions[i, : reply.length] = reply.tokens
        drawn[i, : reply.length] = reply.logprobs
    mask = np.arange(NEW)[None, :] < np.asarray([[r.length] for r in replies])
    shape = (3, SAMPLES, NEW)
    for got in read_again(ckpt.model, ckpt.params, prompts, soft, completions.reshape(shape),
                          mask.reshape(shape)):  # fmt: skip
        np.testing.assert_allclose(np.asarray(got).reshape(9, NEW), drawn, atol=1e-5)


# transformers 5.24's own for the fixture: a token at a time through the cache of its generate, and
# the whole row at once. The original context is 16; the row crosses it from 10 to 22 tokens.
PROMPT = [81, 11, 20, 25, 20, 80, 87, 59, 6, 12]
REPLY = [35, 45, 63, 49, 28, 18, 70, 74, 6, 14, 46, 40]
CACHED = [
    -4.05761, -4.88730, -4.82674, -3.99355, -6.17081, -8.07370, -5.68805, -9.35860, -7.35818,
    -7.63267, -6.51615, -8.41669,
]  # fmt: skip
WHOLE = [
    -4.48904, -4.85768, -5.04074, -4.16056, -6.32673, -8.05558, -5.98761, -9.35626, -7.45211,
    -7.38029, -6.59026, -8.90932,
]  # fmt: skip


def test_dynamic_scaling_is_scored_as_it_is_drawn():
    """T17: keys keep the turn of the length that their row had when they were read. Read whole,
    every key turns by the final length: up to .49 elsewhere."""
    ckpt = checkpoint("llama_dynamic")
    row = jnp.asarray([[0, 0, 0, *PROMPT, *REPLY]])  # padding takes no part in lengths
    mask = row > 0
    lengths = lengths_as_drawn(jnp.asarray([10]), mask)
    assert lengths[0].tolist() == [10] * 13 + [*range(11, 23)]
    read = lambda **k: np.asarray(score(ckpt.model, ckpt.params, row, mask, **k))[0, 13:]  # noqa: E731
    np.testing.assert_allclose(read(lengths=lengths), CACHED, atol=1e-5)
    np.testing.assert_allclose(read(), WHOLE, atol=1e-5)
    assert np.abs(np.subtract(CACHED, WHOLE)).max() > 0.4
    (reply,) = generate(ckpt.model, ckpt.params, [PROMPT], max_new_tokens=12, stop_ids=(),
                        seeds=[3], sampling=Sampling())  # fmt: skip
    row = row.at[0, 13:].set(jnp.asarray(reply.tokens))
    np.testing.assert_allclose(read(lengths=lengths), reply.logprobs, atol=1e-5)
    shared = score_groups(ckpt.model, ckpt.params, row[:, :13], mask[:, :13], row[:, None, 13:],
                          mask[:, None, 13:])  # fmt: skip
    np.testing.assert_allclose(shared[0, 0], reply.logprobs, atol=1e-5)
