"""A decoder over four virtual devices: the same logits, a quarter of the weights on each."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from gradejax.models.cache import empty_cache
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.lora import init_lora
from gradejax.models.quantize import quantize, tree_bytes
from gradejax.models.rotary import Rope
from gradejax.models.sharding import device_bytes, model_mesh, partition, shard, shardings

pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four (virtual) devices")


def config_of(**changes):
    base = {"family": "llama", "vocab_size": 120, "width": 36, "num_layers": 2, "num_heads": 8,
            "num_kv_heads": 4, "head_dim": 6, "mlp_width": 52, "max_positions": 64,
            "qkv_bias": True, "mlp_bias": True}  # fmt: skip
    return DecoderConfig(**(base | changes))


def model_of(config):
    model = Decoder(config)
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    keys = iter(jax.random.split(jax.random.key(1), 99))
    noise = lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape)  # noqa: E731
    return model, jax.tree.map(noise, params)


def batch():
    rng = np.random.default_rng(2)
    tokens = jnp.asarray(rng.integers(0, 120, (3, 11)))
    return tokens, jnp.arange(11)[None, :] >= jnp.asarray([0, 3, 7])[:, None]


def four():
    return model_mesh(jax.devices()[:4])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_same_logits_and_a_quarter_of_the_weights(tied, gated):
    model, params = model_of(config_of(tied=tied, gated=gated))
    tokens, mask = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = shard(params, four())
    read = jax.jit(lambda p: model.apply(p, tokens, mask).logits)
    want = read(params)
    np.testing.assert_allclose(read(split), want, atol=4e-6 * np.abs(want).max())
    assert np.abs(want).max() > 1
    whole, held = tree_bytes(params), device_bytes(split)
    assert len(held) == 4 and len(set(held.values())) == 1
    assert 0.25 * whole <= max(held.values()) < 0.28 * whole  # norms and o's bias are everywhere
    kernel = split["params"]["layers_1"]["attn"]["qkv"]["kernel"]
    assert {s.data.shape for s in kernel.addressable_shards} == {(1, 4, 6, 36)}


def test_cached_decode_adapters_and_8_bits_follow():
    """Prefill of 8 and three steps, rank-3 adapters, weights in 8 bits: all on the split tree."""
    config = config_of()
    model, params = model_of(config)
    lora = init_lora(config, jax.random.key(3), (3, 2), alpha=6)
    lora = jax.tree.map(lambda x: x + 0.1, lora).for_rows([0, -1, 1])
    tokens, mask = batch()
    step = jax.jit(lambda p, t, m, c, x: model.apply(p, t, m, cache=c, lora=x))
    for weights in (params, quantize(params)):
        split = shard(weights, four())
        assert max(device_bytes(split).values()) < 0.3 * tree_bytes(weights)
        runs = []
        for tree in (weights, split):
            cache, pieces = empty_cache(config, 3, 11), []
            for at in (slice(0, 8), slice(8, 9), slice(9, 10), slice(10, 11)):
                out = step(tree, tokens[:, at], mask[:, at], cache, lora)
                cache = out.cache
                pieces.append(out.logits)
            runs.append(np.concatenate(pieces, axis=1))
        np.testing.assert_allclose(runs[1], runs[0], atol=1e-5, rtol=1e-5)


FAMILIES = {
    "mixtral": {"experts": 8, "experts_per_token": 2},
    # Six experts on four devices: each expert's inside is split in their place.
    "mixtral, 6": {"family": "mixtral", "experts": 6, "experts_per_token": 2},
    "gpt_oss": {"experts": 4, "experts_per_token": 2, "swiglu_limit": 7.0, "sinks": True,
                "qkv_bias": True, "out_bias": True, "mlp_bias": True, "sliding_window": 5,
                "sliding": (True, False)},
    "gemma3_text": {"tied": True, "norm": "rms_plus_one", "post_norms": True, "qk_norm": True,
                    "embed_scale": 6.0, "activation": "gelu_pytorch_tanh", "sliding_window": 4,
                    "sliding": (True, False), "local_rope": Rope(theta=100.0)},
    "gpt2": {"num_kv_heads": 8, "tied": True, "gated": False, "rope": None, "norm": "layer",
             "learned_positions": True, "activation": "gelu_new", "out_bias": True},
}  # fmt: skip


@pytest.mark.parametrize("rounded", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_families(name, rounded):
    """A quarter of all that is split; gpt2's learned positions are on every device."""
    plain = {"family": name, "qkv_bias": False, "mlp_bias": False}
    model, params = model_of(config_of(**(plain | FAMILIES[name])))
    tokens, mask = batch()
    weights = quantize(params) if rounded else params
    with warnings.catch_warnings():
        # Only six experts' scales, one for 52 inputs, find no axis that four devices divide.
        warnings.simplefilter("ignore" if rounded and name == "mixtral, 6" else "error")
        split = shard(weights, four())
    read = jax.jit(lambda p: model.apply(p, tokens, mask).logits)
    want = read(weights)
    np.testing.assert_allclose(read(split), want, atol=4e-6 * np.abs(want).max())
    assert np.abs(want).max() > 5
    held, tree = device_bytes(split), params["params"]
    everywhere = tree_bytes(tree.get("positions", ()))
    whole = tree_bytes(weights) - everywhere
    assert len(held) == 4 and len(set(held.values())) == 1
    assert max(held.values()) - everywhere < (0.32 if rounded else 0.28) * whole
    if "experts" in FAMILIES[name]:
        kernel = split["params"]["layers_1"]["mlp"]["gate_up"]["kernel"]
        kernel = kernel.values if rounded else kernel
        shape = (6, 36, 2, 13) if name == "mixtral, 6" else (kernel.shape[0] // 4, 36, 2, 52)
        assert {s.data.shape for s in kernel.addressable_shards} == {shape}


def test_what_does_not_divide_is_kept_whole_and_said():
    """Three key heads and a vocabulary of 121 on four devices; the MLP of 52 still splits."""
    model, params = model_of(config_of(num_heads=9, num_kv_heads=3, vocab_size=121, tied=True))
    tokens, mask = batch()
    with pytest.warns(UserWarning) as said:
        split = shard(params, four())
    said = [str(w.message) for w in said]
    assert len(said) == 7  # qkv kernel and bias and o of two layers, and the embedding
    assert any(m.startswith("embedding/embedding (121, 36) is kept whole on each of 4 devices: "
                            "they do not divide its vocab of 121") for m in said)  # fmt: skip
    assert any(m.startswith("layers_1/attn/o/kernel (36, 3, 3, 6)") and "kv of 3" in m
               for m in said)  # fmt: skip
    read = jax.jit(lambda p: model.apply(p, tokens, mask).logits)
    np.testing.assert_allclose(read(split), read(params), atol=1e-5, rtol=1e-5)
    assert split["params"]["layers_0"]["attn"]["o"]["kernel"].sharding.is_fully_replicated
    assert not split["params"]["layers_0"]["mlp"]["down"]["kernel"].sharding.is_fully_replicated


def test_gradients_lie_where_the_weights_do():
    model, params = model_of(config_of())
    tokens, mask = batch()
    split = shard(params, four())
    loss = lambda p: jnp.sum(model.apply(p, tokens, mask).logits ** 2)  # noqa: E731
    places = shardings(params, four())
    grads = jax.jit(jax.grad(loss), out_shardings=places)(split)
    want = jax.jit(jax.grad(loss))(params)
    for got, plain in zip(jax.tree.leaves(grads), jax.tree.leaves(want), strict=True):
        scale = float(np.abs(plain).max())
        np.testing.assert_allclose(got, plain, atol=1e-5 * scale, rtol=1e-4)


def test_partition_of_odd_things():
    assert partition("layers_0/attn_norm/scale", (36,), 4) == PartitionSpec()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scale's axes of one are no matter for a warning
        assert partition("layers_0/mlp/down/kernel", (36, 1), 4) == PartitionSpec()
    with pytest.raises(ValueError, match="its axes should be width, mlp"):
        partition("layers_0/mlp/down/kernel", (8, 52, 36, 1), 4)
    with pytest.raises(ValueError, match="needs an axis 'model', it has data"):
        shardings({"params": {}}, Mesh(np.asarray(jax.devices()[:2]), ("data",)))
