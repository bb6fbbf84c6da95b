"""Norms, products and heads against their formulas and the faults' numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.layers import Linear, RMSNorm
from gradejax.models.lora import Lora

RNG = np.random.default_rng(5)
CONFIG = DecoderConfig(
    family="qwen2", vocab_size=13, width=11, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=4,
    mlp_width=17, max_positions=32, qkv_bias=True,
)  # fmt: skip


def test_tied_logits():
    """D04: E h = [1, 4, 5] with the head taken from the embedding."""
    tied = DecoderConfig(
        family="qwen2", vocab_size=3, width=2, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=2, mlp_width=3, max_positions=5, tied=True,
    )  # fmt: skip
    model = Decoder(tied)
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    assert "head" not in params
    params["embedding"]["embedding"] = jnp.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    out = model.apply({"params": params}, jnp.array([[1.0, 2.0]]), method="logits")
    np.testing.assert_array_equal(out, [[1.0, 4.0, 5.0]])


def test_rms_norm():
    x = np.random.default_rng(2).normal(size=(3, 7)).astype("f4") * 100
    w = np.linspace(0.5, 2, 7).astype("f4")
    out = RMSNorm(1e-5).apply({"params": {"scale": w}}, jnp.asarray(x))
    plain = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, plain * w, rtol=1e-5)
    # D06: gemma stores w - 1; without its +1, or with it twice, all is one too small or big.
    one = RMSNorm(1e-5, plus_one=True).apply({"params": {"scale": w}}, jnp.asarray(x))
    np.testing.assert_allclose(one, plain * (1 + w), rtol=1e-5)
    # In half precision squares of 300 overflow unless the mean is taken in float32.
    wide = RMSNorm(1e-5).apply(
        {"params": {"scale": jnp.ones(7, jnp.float16)}}, jnp.full((1, 7), 300, jnp.float16)
    )
    np.testing.assert_allclose(np.asarray(wide, np.float32), 1.0, atol=1e-2)


def test_linear_over_several_axes_and_a_part_of_its_outputs():
    x = RNG.normal(size=(2, 3, 5, 7)).astype("f4")
    params = {"kernel": RNG.normal(size=(2, 4, 3, 5, 7)).astype("f4"),
              "bias": RNG.normal(size=(2, 4, 3)).astype("f4")}  # fmt: skip
    layer = Linear((2, 4, 3), bias=True, axes=2)
    out = layer.apply({"params": params}, x)
    np.testing.assert_allclose(
        out, np.einsum("btkh,xyzkh->btxyz", x, params["kernel"]) + params["bias"], atol=1e-4
    )
    part = layer.apply({"params": params}, x, slice(1, 3))
    np.testing.assert_allclose(part, out[:, :, :, 1:3], atol=1e-5)


def random_params(config, seed=0):
    params = Decoder(config).init(jax.random.key(seed), jnp.zeros((1, 2), jnp.int32))
    keys = iter(jax.random.split(jax.random.key(seed), 99))
    return jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape), params)


def merged(params, lora, row):
    """The kernels with W + Σ w · scale · A B of one row written in, in float64 NumPy."""
    p = jax.tree.map(lambda x: np.array(x, np.float64), params)
    for name, entries in lora.tree.items():
        block = p["params"][name]
        for target, ab in entries.items():
            gain = np.asarray(lora.weights[row] * lora.scale)
            delta = np.einsum("n,nir,nro->io", gain, ab["a"], ab["b"])
            if target in "qkv":
                kernel = block["attn"]["qkv"]["kernel"]
                at = {"q": slice(0, 3), "k": 3, "v": 4}[target]
                kernel[:, at] += delta.T.reshape(kernel[:, at].shape)
            elif target == "o":
                kernel = block["attn"]["o"]["kernel"]
                kernel += delta.T.reshape(kernel.shape)
            elif target == "down":
                block["mlp"]["down"]["kernel"] += delta.T
            else:
                block["mlp"]["gate_up"]["kernel"][("gate", "up").index(target)] += delta.T
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), p)


def test_adapters_equal_merged_weights_at_all_seven_places():
    """D01: three rows of different mixtures, each equal to a model with its deltas merged in."""
    sizes = {"q": (11, 24), "k": (11, 8), "v": (11, 8), "o": (24, 11), "gate": (11, 17),
             "up": (11, 17), "down": (17, 11)}  # fmt: skip
    draw = lambda *s: jnp.asarray(0.3 * RNG.normal(size=s), jnp.float32)  # noqa: E731
    entries = lambda *targets: {  # noqa: E731
        t: {"a": draw(2, sizes[t][0], 3), "b": draw(2, 3, sizes[t][1])} for t in targets
    }
    lora = Lora(
        tree={"layers_0": entries("q", "down", "up"),
              "layers_1": entries("k", "v", "o", "gate")},
        weights=jnp.asarray([[1.0, 0.0], [0.0, 0.0], [0.5, -2.0]]), scale=jnp.asarray([2.0, 0.5]),
    )  # fmt: skip
    params, tokens = random_params(CONFIG), jnp.asarray(RNG.integers(0, 13, (3, 9)))
    model = Decoder(CONFIG)
    out = model.apply(params, tokens, lora=lora).logits
    plain = model.apply(params, tokens).logits
    for row in range(3):
        alone = model.apply(merged(params, lora, row), tokens[row : row + 1]).logits
        np.testing.assert_allclose(out[row], alone[0], atol=2e-4, rtol=1e-4)
    assert np.abs(out - plain)[[0, 2]].max() > 0.1
    np.testing.assert_allclose(out[1], plain[1], atol=1e-5)
    nothing = model.apply(params, tokens, lora=lora.replace(tree={})).logits
    np.testing.assert_array_equal(nothing, plain)
