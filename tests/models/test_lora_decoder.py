"""Adapters through the whole decoder: every row as if alone, the base untouched, and merged."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hf_folders import checkpoint, expected

from gradejax.models.cache import empty_cache
from gradejax.models.lora import TARGETS, init_lora, stack
from gradejax.models.lora_merge import merge

NAMES = ("llama_sharded", "phi3", "qwen2")  # tied and with all biases; fused with a window; plain
WHICH = (1, -1, 2, 0, 1)
MIXTURE = ((0.2, 0.7, -0.4), (0.0, 0.0, 0.0), (0.0, 0.5, 0.0), (1.0, 1.0, 1.0), (0.3, 0.0, 0.9))


@functools.cache
def adapters(name):
    """Three: all targets, rank 4; q and down of the last layer, rank 2; gate and v, rank 3."""
    config = checkpoint(name).config
    parts = [
        init_lora(config, jax.random.key(1), 4, alpha=6),
        init_lora(config, jax.random.key(2), 2, alpha=5, targets=("q", "down"), last_n=1),
        init_lora(config, jax.random.key(3), 3, alpha=2, targets=("gate", "v"), init="normal"),
    ]
    return stack([with_b(lora, i) for i, lora in enumerate(parts)])


def with_b(lora, seed):
    keys = iter(jax.random.split(jax.random.key(40 + seed), 99))
    fill = lambda e: e | {"b": 0.2 * jax.random.normal(next(keys), e["b"].shape)}  # noqa: E731
    return lora.replace(
        tree={k: {t: fill(e) for t, e in v.items()} for k, v in lora.tree.items()}
    )


def batch(name):
    """Five rows of the padded fixture, pads of 0, 3 and 16 on the left."""
    want = expected(name)
    rows = [0, 1, 2, 1, 0]
    tokens = jnp.asarray(want["tokens"][rows])
    tokens = tokens.at[3:].set((tokens[3:] + 2) % 113)  # of their vocabulary
    return tokens, jnp.asarray(want["mask"][rows])


def logp(logits, tokens):
    """log p of each token after the first, [B, T - 1]."""
    each = jax.nn.log_softmax(logits[:, :-1], axis=-1)
    return jnp.take_along_axis(each, tokens[:, 1:, None], axis=2)[:, :, 0]


@functools.cache
def reader(name):
    ckpt = checkpoint(name)
    return jax.jit(lambda p, t, m, x: ckpt.model.apply(p, t, m, lora=x).logits)


def mixed(name, weights):
    lora = adapters(name)
    if weights == "one":
        return lora.for_rows(WHICH)
    return lora.replace(weights=jnp.asarray(MIXTURE))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weights", ["one", "mixture"])
def test_each_row_equals_its_solo_run(name, weights):
    """T16: rows alone, unpadded, with only what weighs; scores too."""
    tokens, mask = batch(name)
    lora, params = mixed(name, weights), checkpoint(name).params
    together = reader(name)(params, tokens, mask, lora)
    bare = reader(name)(params, tokens, mask, None)
    for i in range(5):
        real = np.asarray(mask[i])
        row = tokens[i : i + 1, real]
        solo = checkpoint(name).model.apply(
            params, row, lora=lora.replace(weights=lora.weights[i : i + 1])
        ).logits
        np.testing.assert_allclose(together[i][real], solo[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(
            logp(together[i : i + 1, real], row), logp(solo, row), atol=1e-5, rtol=0
        )
        gap = np.abs(together[i] - bare[i])[real].max()
        assert gap == 0 if not np.any(lora.weights[i]) else gap > 0.1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weights", ["one", "mixture"])
def test_cached_decode_equals_the_whole_read(name, weights):
    """Prefill of 20 and three tokens one by one, the adapters at work in both."""
    tokens, mask = batch(name)
    ckpt, lora = checkpoint(name), mixed(name, weights)
    whole = reader(name)(ckpt.params, tokens, mask, lora)
    step = jax.jit(lambda p, t, m, c, x: ckpt.model.apply(p, t, m, cache=c, lora=x))
    cache, pieces = empty_cache(ckpt.config, 5, 25), []
    for at in (slice(0, 20), slice(20, 21), slice(21, 22), slice(22, 23)):
        out = step(ckpt.params, tokens[:, at], mask[:, at], cache, lora)
        cache = out.cache
        pieces.append(out.logits)
    real = np.asarray(mask)
    np.testing.assert_allclose(
        np.concatenate(pieces, axis=1)[real], whole[real], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_start_is_bit_equal_to_the_base(name):
    """D09, T14: B = 0, every target, every row weighing something."""
    tokens, mask = batch(name)
    lora = init_lora(checkpoint(name).config, jax.random.key(0), (2, 5), alpha=9)
    lora = lora.replace(weights=jnp.full((5, 2), 0.7))
    params = checkpoint(name).params
    np.testing.assert_array_equal(
        reader(name)(params, tokens, mask, lora), reader(name)(params, tokens, mask, None)
    )


@pytest.mark.parametrize("name", NAMES)
def test_merged_tree_equals_the_adapters(name):
    """T15: and its embedding is the base's own array, tied or not."""
    tokens, mask = batch(name)
    lora, ckpt = adapters(name), checkpoint(name)
    share = jnp.asarray([0.6, -0.3, 1.1])
    plain = merge(ckpt.params, lora, share)
    got = reader(name)(plain, tokens, mask, None)
    want = reader(name)(ckpt.params, tokens, mask,
                        lora.replace(weights=jnp.broadcast_to(share[None], (5, 3))))  # fmt: skip
    real = np.asarray(mask)
    np.testing.assert_allclose(
        logp(got, tokens)[real[:, :-1]], logp(want, tokens)[real[:, :-1]], atol=1e-5, rtol=1e-5
    )
    ours, theirs = plain["params"], ckpt.params["params"]
    assert ours["embedding"]["embedding"] is theirs["embedding"]["embedding"]
    assert jax.tree.structure(plain) == jax.tree.structure(ckpt.params)


def loss_fn(name):
    tokens, mask = batch(name)
    ckpt = checkpoint(name)

    def loss(tree, lora, params):
        logits = ckpt.model.apply(params, tokens, mask, lora=lora.replace(tree=tree)).logits
        return -jnp.sum(logp(logits, tokens) * mask[:, :-1]) / jnp.sum(mask)

    return loss


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_only_what_weighs(name):
    """Rows use adapters 0 and 2: adapter 1 and all padding get exactly 0, all else something."""
    lora = adapters(name).for_rows([0, 2, -1, 2, 0])
    grads = jax.jit(jax.grad(loss_fn(name)))(lora.tree, lora, checkpoint(name).params)
    for layer, entries in lora.tree.items():
        for target, e in entries.items():
            for factor in ("a", "b"):
                size, held = np.abs(grads[layer][target][factor]), np.abs(e[factor])
                assert size[1].max() == 0, (layer, target)
                for i in (0, 2):
                    live = held[i].max(axis=0 if factor == "a" else 1) > 0
                    rank = size[i].max(axis=0 if factor == "a" else 1)
                    assert (rank[~live] == 0).all() and (rank[live] > 0).all(), (layer, target)


@pytest.mark.parametrize("name", ["llama_sharded", "phi3"])
def test_training_moves_adapters_and_never_the_base(name):
    """D07, D09: after one step B has moved and A not, after two both; the base is bit-equal, its
    gradient is not even taken, and the optimiser knows nothing of it."""
    ckpt = checkpoint(name)
    base = jax.tree.map(np.array, ckpt.params)
    lora = init_lora(ckpt.config, jax.random.key(0), (2, 3), alpha=4, last_n=1).for_rows(WHICH_TWO)
    optimiser = optax.adamw(1e-2, weight_decay=0.0)
    state = optimiser.init(lora.tree)
    assert sum(x.size for x in jax.tree.leaves(state)) == 1 + 2 * sum(
        x.size for x in jax.tree.leaves(lora.tree)
    )
    traces = []

    @jax.jit
    def step(lora, state, params):  # adapters are arguments, never constants
        traces.append(1)
        value, grads = jax.value_and_grad(loss_fn(name))(lora.tree, lora, params)
        updates, state = optimiser.update(grads, state, lora.tree)
        return lora.replace(tree=optax.apply_updates(lora.tree, updates)), state, value

    values, seen = [], [lora]
    for _ in range(4):
        lora, state, value = step(lora, state, ckpt.params)
        values.append(float(value))
        seen.append(lora)
    moved = lambda x, y, f: [  # noqa: E731
        not np.array_equal(x.tree[k][t][f], y.tree[k][t][f]) for k in x.tree for t in x.tree[k]
    ]
    assert all(moved(seen[0], seen[1], "b")) and not any(moved(seen[0], seen[1], "a"))
    assert all(moved(seen[1], seen[2], "a"))
    assert values[3] < values[0] - 0.01 and len(traces) == 1
    assert all(np.array_equal(x, y) for x, y in zip(
        jax.tree.leaves(base), jax.tree.leaves(ckpt.params), strict=True))  # fmt: skip


WHICH_TWO = (0, 1, 1, 0, 1)


def test_base_gets_its_gradient_when_asked():
    lora = adapters("qwen2").for_rows(WHICH)
    loss = loss_fn("qwen2")
    grads = jax.jit(jax.grad(loss, argnums=2))(lora.tree, lora, checkpoint("qwen2").params)
    kernel = grads["params"]["layers_0"]["attn"]["qkv"]["kernel"]
    assert np.abs(kernel).max(axis=(2, 3)).min() > 0


def test_changed_adapters_change_the_next_answer():
    """B08, D09: the compiled function reads them anew; adapters captured as constants would not."""
    tokens, mask = batch("qwen2")
    params, read = checkpoint("qwen2").params, reader("qwen2")
    lora = adapters("qwen2").for_rows([0] * 5)
    first = read(params, tokens, mask, lora)
    compiled = read._cache_size()
    later = read(params, tokens, mask, jax.tree.map(lambda x: 1.5 * x, lora))
    assert np.abs(first - later).max() > 0.1 and read._cache_size() == compiled


def test_what_is_left_out_costs_nothing():
    """The products of a decoder with one adapted matrix: two more than without."""
    ckpt = checkpoint("qwen2")
    tokens, mask = batch("qwen2")

    def products(lora):
        text = str(jax.make_jaxpr(lambda p, x: ckpt.model.apply(p, tokens, mask, lora=x).logits)(
            ckpt.params, lora))  # fmt: skip
        return text.count("dot_general")

    bare = products(None)
    for target in TARGETS:
        one = init_lora(ckpt.config, jax.random.key(0), 2, n=3, targets=(target,), layers=[1])
        assert products(one.for_rows(WHICH)) == bare + 2


def test_in_bfloat16_a_float32_adapter_serves():
    """States stay bfloat16 and near the float32 run; the adapter's own dtype is not the model's."""
    ckpt = checkpoint("qwen2")
    tokens, mask = batch("qwen2")
    lora = adapters("qwen2").for_rows(WHICH)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), ckpt.params)
    out = ckpt.model.clone(dtype=jnp.bfloat16).apply(half, tokens, mask, lora=lora).logits
    assert out.dtype == jnp.bfloat16
    want = reader("qwen2")(ckpt.params, tokens, mask, lora)
    real = np.asarray(mask)
    gap = np.linalg.norm(np.asarray(out, np.float32)[real] - want[real])
    assert gap < 0.05 * np.linalg.norm(want[real])
