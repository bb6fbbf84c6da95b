import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.lora import init_lora
from gradejax.models.ragged import ragged

LEFT = np.asarray([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], bool)
HOLES = np.asarray([[1, 0, 1, 0, 1], [1, 1, 1, 0, 0]], bool)


@pytest.mark.parametrize("mask", [LEFT, HOLES], ids=["left", "holes"])
@pytest.mark.parametrize("extra", [0, 3])
def test_tokens_side_by_side_and_back(mask, extra):
    packing = ragged(jnp.asarray(mask), int(mask.sum()) + extra)
    x = np.arange(mask.size * 2.0).reshape(*mask.shape, 2) + 1
    packed = packing.pack(jnp.asarray(x))
    np.testing.assert_array_equal(packed[: mask.sum(), 0], x[mask])
    assert packed.shape == (mask.sum() + extra, 1, 2)
    back = packing.unpack(packed)
    np.testing.assert_array_equal(back, np.where(mask[..., None], x, 0))
    np.testing.assert_array_equal(packing.row[: mask.sum()], np.nonzero(mask)[0])


def test_padding_is_inert():
    """What stands at padding, and what the fillers hold, reaches nothing."""
    packing = ragged(jnp.asarray(LEFT), int(LEFT.sum()) + 2)
    x = jnp.where(LEFT[..., None], 1.0, jnp.nan)
    packed = packing.pack(x)
    assert np.isfinite(packed[: LEFT.sum()]).all()
    np.testing.assert_array_equal(
        packing.unpack(packed.at[LEFT.sum() :].set(jnp.nan)), LEFT[..., None]
    )


def small(**options):
    return Decoder(DecoderConfig(**{
        "family": "llama", "vocab_size": 31, "width": 12, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 6, "mlp_width": 10, "max_positions": 32} | options))


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 3, "sliding": (True, False)}, {"experts": 4, "experts_per_token": 2},
     {"qk_norm": True}],
    ids=["plain", "window", "mixture", "qk_norm"],
)
@pytest.mark.parametrize("adapted", [False, True])
def test_prefill_reads_the_same_side_by_side(options, adapted):
    """States, keys and values of real tokens, behind a common part too, and their gradient."""
    model = small(**options)
    keys = jax.random.split(jax.random.key(0), 4)
    params = model.init(keys[0], jnp.ones((1, 2), jnp.int32))
    lora = None
    if adapted:
        targets = ("q", "v", "o") if "experts" in options else ("q", "o", "gate", "down")
        lora = init_lora(model.config, keys[1], (2, 3), targets=targets)
        lora = lora.replace(
            tree=jax.tree.map(lambda x: x + 0.3, lora.tree),
            weights=jnp.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.5, 2.0]]),
        )
    _, common = model.apply(params, jnp.asarray([[3, 4, 5]]), method="prefill")
    tokens = jax.random.randint(keys[2], LEFT.shape, 0, 31)
    weight = jax.random.normal(keys[3], (*LEFT.shape, 12)) * LEFT[..., None]

    def read(lora, count, tokens):
        states, part = model.apply(params, tokens, jnp.asarray(LEFT), parts=(common,), lora=lora,
                                   count=count, method="prefill")  # fmt: skip
        return states, part

    for count in (int(LEFT.sum()), int(LEFT.sum()) + 4):
        want, got = read(lora, None, tokens), read(lora, count, tokens)
        np.testing.assert_allclose(got[0][LEFT], want[0][LEFT], atol=1e-5)
        for (k, v), (k0, v0) in zip(got[1].layers, want[1].layers, strict=True):
            real = jnp.asarray(LEFT)[:, None, :, None]
            np.testing.assert_allclose(v * real, v0 * real, atol=1e-5)
            real = real.swapaxes(2, 3)
            np.testing.assert_allclose(k * real, k0 * real, atol=1e-5)
        other = read(lora, count, jnp.where(LEFT, tokens, 30))[0]
        np.testing.assert_array_equal(other[LEFT], got[0][LEFT])
        if adapted:
            slope = jax.grad(lambda lo, n: jnp.sum(read(lo, n, tokens)[0] * weight), allow_int=True)
            for a, b in zip(jax.tree.leaves(slope(lora, count).tree),
                            jax.tree.leaves(slope(lora, None).tree), strict=True):  # fmt: skip
                np.testing.assert_allclose(a, b, atol=2e-5)
