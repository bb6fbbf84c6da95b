"""What rows have in common is read once: values, gradients and caches equal those of copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint

from gradejax.models.cache import as_parts, empty_cache

RNG = np.random.default_rng(7)
FAMILIES = ("phi3", "gemma3", "gpt_oss", "gpt2", "llama_dynamic")


def left_padded(rows, lengths, width):
    mask = np.arange(width)[None, :] >= width - np.asarray(lengths)[:, None]
    return jnp.asarray(np.where(mask, RNG.integers(3, 113, (rows, width)), 0)), jnp.asarray(mask)


SYSTEM = left_padded(1, [4], 5)  # seen by all
PROMPTS = left_padded(2, [3, 6], 6)  # one for two rows each
REPLIES = tuple(x[:, ::-1] for x in left_padded(4, [5, 3, 4, 1], 5))  # right-padded
TOTAL = jnp.asarray([12, 10, 14, 11])  # tokens of each whole row


def whole_rows():
    """The same four rows, each with everything that stands before it."""
    copies = lambda pair, n: [jnp.repeat(x, n, axis=0) for x in pair]  # noqa: E731
    pieces = zip(copies(SYSTEM, 4), copies(PROMPTS, 2), REPLIES, strict=True)
    return [jnp.concatenate(x, axis=1) for x in pieces]


def shared_states(model, params, lengths):
    """States of the replies, system and prompts run once."""
    at = lambda rows: None if lengths is None else lengths[:: 4 // rows]  # noqa: E731
    prefill = lambda pair, parts, rows: model.apply(  # noqa: E731
        params, *pair, parts=parts, lengths=at(rows), method="prefill"
    )[1]
    system = prefill(SYSTEM, (), 1)
    prompts = prefill(PROMPTS, (system,), 2)
    return model.apply(params, *REPLIES, parts=(system, prompts), lengths=lengths, method="hidden")


@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_gradients_equal_whole_rows(name):
    """Positions go on after the parts' real tokens, windows reach back into them."""
    model, params = checkpoint(name).model, checkpoint(name).params
    # One length for all: a part is turned once, whatever its rows go on to.
    lengths = jnp.full((4,), 14) if name == "llama_dynamic" else None
    weight = jnp.asarray(RNG.normal(size=(4, 5, model.config.width)), jnp.float32)
    weight = weight * REPLIES[1][:, :, None]

    def shared(params):
        states = shared_states(model, params, lengths)
        return jnp.sum(states * weight), states

    def plain(params):
        states = model.apply(params, *whole_rows(), lengths=lengths, method="hidden")[:, -5:]
        return jnp.sum(states * weight), states

    (_, got), grads = jax.jit(jax.value_and_grad(shared, has_aux=True))(params)
    (_, want), right = jax.jit(jax.value_and_grad(plain, has_aux=True))(params)
    real = np.asarray(REPLIES[1])
    np.testing.assert_allclose(got[real], want[real], atol=2e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-3), grads, right
    )


def test_a_cache_becomes_a_part():
    """Read through caches: the system prompt's slots serve two prompts, theirs serve four rows."""
    model, params, config = (getattr(checkpoint("phi3"), k) for k in ("model", "params", "config"))
    read = jax.jit(lambda pair, cache: model.apply(params, *pair, cache=cache))
    system = read(SYSTEM, empty_cache(config, 1, 7)).cache  # two slots to spare
    prompts = read(PROMPTS, empty_cache(config, 2, 6, parts=as_parts(system))).cache
    cache = empty_cache(config, 4, 5, parts=as_parts(prompts))
    assert [p.real.shape for p in cache.parts] == [(1, 7), (2, 6)]
    outs = []
    for t in range(5):
        out = read([x[:, t : t + 1] for x in REPLIES], cache)
        cache = out.cache
        outs.append(out.hidden)
    want = model.apply(params, *whole_rows(), method="hidden")[:, -5:]
    real = np.asarray(REPLIES[1])
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1)[real], want[real], atol=2e-5)
    assert cache.positions[0].tolist() == [7, 8, 9, 10, 11]  # 4 + 3 tokens before


def test_shared_states_do_not_grow_with_the_group():
    """Of 64 rows on one prompt of 256 tokens, memory holds the prompt's keys once."""
    model = checkpoint("llama").model
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
    params = jax.tree.map(shape, checkpoint("llama").params)

    def read(params, prompt, replies):
        part = model.apply(params, prompt, method="prefill")[1]
        return model.apply(params, replies, parts=(part,), method="hidden")

    used = []
    for rows in (16, 64):
        ids = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((1, 256), (rows, 1))]
        compiled = jax.jit(read).lower(params, *ids).compile()
        used.append(compiled.memory_analysis().temp_size_in_bytes)
    keys = 2 * 2 * 10 * 256 * 4  # one layer's keys and values of one row
    assert used[1] - used[0] < 48 * keys / 2
