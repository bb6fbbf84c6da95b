"""log p of given tokens: places, masks, temperature, chunks; and the sampler's own figures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, expected, rows_of

from gradejax.generation.decode import generate
from gradejax.generation.prompts import left_pad
from gradejax.generation.sampling import Sampling
from gradejax.generation.score import score
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("name, chunk", [("llama", 64), ("phi3", 5), ("qwen2", 1)])
def test_logit_before_scores_the_token(name, chunk):
    """B02, T10: logits[t - 1] against token t, from torch's logits of the padded batch."""
    ckpt, want = checkpoint(name), expected(name)
    got = np.asarray(score(ckpt.model, ckpt.params, jnp.asarray(want["tokens"]),
                           jnp.asarray(want["mask"]), chunk=chunk))  # fmt: skip
    table, tokens = log_softmax(want["logits"]), want["tokens"]
    right = np.zeros(tokens.shape)
    right[:, 1:] = np.take_along_axis(table[:, :-1], tokens[:, 1:, None], axis=2)[..., 0]
    first = np.array([0, 3, 16])[:, None] == np.arange(23)[None, :]
    right[~want["mask"] | first] = 0  # the first token of a row has none
    np.testing.assert_allclose(got, right, atol=3e-5)
    fault = np.take_along_axis(table, tokens[..., None], axis=2)[..., 0]
    assert np.abs(got - fault)[want["mask"]].mean() > 0.5


def test_padding_side_is_inert():
    ckpt, rows = checkpoint("phi3"), rows_of("phi3")
    left = expected("phi3")
    tokens, mask = np.full((3, 29), 9), np.zeros((3, 29), bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], mask[i, : len(row)] = row, True
    run = jax.jit(lambda t, m: score(ckpt.model, ckpt.params, t, m))
    right = np.asarray(run(jnp.asarray(tokens), jnp.asarray(mask)))
    want = np.asarray(run(jnp.asarray(left["tokens"]), jnp.asarray(left["mask"])))
    np.testing.assert_allclose(right[mask], want[left["mask"]], atol=2e-5)
    assert (right[~mask] == 0).all() and (want[~left["mask"]] == 0).all()


@pytest.mark.parametrize(
    "name, temperature, vocab", [("llama", 1.0, None), ("phi3", 0.7, None), ("qwen2", 1.3, 97)]
)
def test_sampler_and_scorer_agree(name, temperature, vocab):
    """A05, T7: on unchanged weights every ratio is 1 within 1e-5."""
    ckpt, prompts = checkpoint(name), rows_of(name)
    replies = generate(
        ckpt.model, ckpt.params, prompts, max_new_tokens=13, stop_ids=(7,), seeds=[4, 5, 6],
        sampling=Sampling(temperature=temperature), batch_size=3, vocab=vocab,
    )  # fmt: skip
    rows = [p + g.tokens for p, g in zip(prompts, replies, strict=True)]
    tokens, mask = left_pad(rows, 3, 41)
    got = score(ckpt.model, ckpt.params, jnp.asarray(tokens), jnp.asarray(mask),
                temperature=temperature, vocab=vocab)  # fmt: skip
    for row, reply in zip(np.asarray(got), replies, strict=True):
        ratio = np.exp(row[-len(reply.tokens) :] - np.asarray(reply.logprobs))
        np.testing.assert_allclose(ratio, 1, atol=2e-5)


def test_gradient_does_not_depend_on_the_chunk():
    ckpt, want = checkpoint("qwen2"), expected("qwen2")
    tokens, mask = jnp.asarray(want["tokens"]), jnp.asarray(want["mask"])

    def total(params, chunk):
        return score(ckpt.model, params, tokens, mask, chunk=chunk, vocab=112).sum()

    one, other = (jax.jit(jax.grad(total), static_argnums=1)(ckpt.params, c) for c in (64, 7))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(one))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), one, other)
    # B10 in training: the head's row beyond the tokenizer gets exactly no gradient.
    head = np.asarray(one["params"]["head"]["kernel"])
    assert (head[112] == 0).all() and (np.abs(head[:112]).max(1) > 0).all()


def test_memory_is_of_a_chunk():
    """Nothing of [B, T, V] in float32 is held: 4 · 512 · 32,003 · 4 bytes would be 262 MB."""
    model = Decoder(DecoderConfig(
        family="llama", vocab_size=32_003, width=8, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=8, mlp_width=8, max_positions=512,
    ))  # fmt: skip
    tokens = jax.ShapeDtypeStruct((4, 512), jnp.int32)
    mask = jax.ShapeDtypeStruct((4, 512), jnp.bool_)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    grad = jax.jit(jax.grad(lambda p, t, m: score(model, p, t, m, chunk=16).sum()))
    used = grad.lower(params, tokens, mask).compile().memory_analysis().temp_size_in_bytes
    assert used < 80e6


def test_scoring_needs_a_temperature():
    ckpt = checkpoint("llama")
    with pytest.raises(ValueError, match="temperature must be a number > 0"):
        score(ckpt.model, ckpt.params, jnp.ones((1, 3), jnp.int32), jnp.ones((1, 3), bool),
              temperature=0.0)  # fmt: skip
