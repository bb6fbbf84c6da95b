"""Rotary tables, attention and projections against their formulas and the faults' numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.config import DecoderConfig, Rope
from gradejax.models.decoder import Decoder, causal_mask, token_positions
from gradejax.models.hf_weights import _ours, _theirs
from gradejax.models.layers import (
    RMSNorm,
    attend,
    inverse_frequencies,
    rope_tables,
    rotate,
)
from gradejax.models.weight_names import Entry, weight_table

LLAMA3 = Rope(theta=500000.0, kind="llama3", factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_positions=8192)  # fmt: skip


def test_linear_weight_is_transposed():
    """D02: a square torch weight; untransposed it would give 31 and 42."""
    entry = Entry("w", (2, 2), (("w/kernel", 2),), True)
    torch_weight = np.array([[1.0, 2.0], [3.0, 4.0]])
    kernel = _ours(entry, torch_weight, {"w/kernel": (2, 2)})["w/kernel"]
    np.testing.assert_array_equal(kernel, [[1.0, 3.0], [2.0, 4.0]])
    np.testing.assert_array_equal(np.array([1.0, 10.0]) @ kernel, [21.0, 43.0])
    np.testing.assert_array_equal(_theirs(entry, {"w/kernel": kernel}), torch_weight)


def test_fused_rows_are_split_in_order():
    """T19: q, k, v of 5, 2 and 3 rows; equal thirds would mix them."""
    entry = Entry("qkv", (10, 3), (("q", 5), ("k", 2), ("v", 3)), True)
    weight = np.arange(30.0).reshape(10, 3)
    parts = _ours(entry, weight, {"q": (3, 5), "k": (3, 2), "v": (3, 3)})
    np.testing.assert_array_equal(parts["q"].T, weight[:5])
    np.testing.assert_array_equal(parts["k"].T, weight[5:7])
    np.testing.assert_array_equal(parts["v"].T, weight[7:])
    np.testing.assert_array_equal(_theirs(entry, parts), weight)


def config(**entries):
    base = {"family": "qwen2", "vocab_size": 13, "width": 2048, "num_layers": 1, "num_heads": 16,
            "num_kv_heads": 2, "head_dim": 128, "mlp_width": 17, "max_positions": 32,
            "qkv_bias": True}  # fmt: skip
    return DecoderConfig(**(base | entries))


def test_grouped_shapes_and_biases():
    """D05: k and v are kv_heads · head_dim wide; biases on q, k, v and none on o."""
    shapes = {e.name.removeprefix("model.layers.0.self_attn."): e.shape
              for e in weight_table(config()) if "self_attn" in e.name}  # fmt: skip
    assert shapes == {
        "q_proj.weight": (2048, 2048), "q_proj.bias": (2048,),
        "k_proj.weight": (256, 2048), "k_proj.bias": (256,),
        "v_proj.weight": (256, 2048), "v_proj.bias": (256,),
        "o_proj.weight": (2048, 2048),
    }  # fmt: skip


def test_bias_is_added():
    """D05: [2 + 2 + .3, -4 - .7]; without the bias [4, -4]."""
    weight, bias = np.array([[1.0, 0.5], [0.0, -1.0]]), np.array([0.3, -0.7])
    kernel = _ours(Entry("q", (2, 2), (("k", 2),), True), weight, {"k": (2, 1, 2)})["k"]
    offset = _ours(Entry("b", (2,), (("b", 2),), False), bias, {"b": (1, 2)})["b"]
    dense = nn.DenseGeneral((1, 2))
    out = dense.apply({"params": {"kernel": kernel, "bias": offset}}, jnp.array([2.0, 4.0]))
    np.testing.assert_allclose(out[0], [4.3, -4.7], atol=1e-6)


def test_tied_logits():
    """D04: E h = [1, 4, 5] with the head taken from the embedding."""
    tied = config(vocab_size=3, width=2, num_heads=1, num_kv_heads=1, head_dim=2, tied=True)
    model = Decoder(tied)
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    assert "head" not in params
    params["embedding"]["embedding"] = jnp.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    out = model.apply({"params": params}, jnp.array([[1.0, 2.0]]), method="logits")
    np.testing.assert_array_equal(out, [[1.0, 4.0, 5.0]])


# Rotary positions


@pytest.mark.parametrize("position", [0, 10, 8191, 8193, 100_000])
@pytest.mark.parametrize("rope", [Rope(), Rope(theta=1e6), LLAMA3], ids=lambda r: str(r.theta))
def test_tables_at_far_positions(position, rope):
    """Against float64; the angle position · speed is rounded once to float32, as in HF."""
    cos, sin = rope_tables(jnp.full((1, 1), position), rope, 14)
    angle = position * inverse_frequencies(rope, 14)
    tolerance = 1e-6 + 2e-7 * position
    np.testing.assert_allclose(cos[0, 0, 0, :7], np.cos(angle), atol=tolerance, rtol=0)
    np.testing.assert_allclose(sin[0, 0, 0, 7:], np.sin(angle), atol=tolerance, rtol=0)


def test_theta_is_not_left_at_its_default():
    """D10: base 1e6 read as 1e4 turns by another angle at position 1000."""
    right = rope_tables(jnp.full((1, 1), 1000), Rope(theta=1e6), 14)[0][0, 0, 0, 3]
    wrong = rope_tables(jnp.full((1, 1), 1000), Rope(theta=1e4), 14)[0][0, 0, 0, 3]
    np.testing.assert_allclose(right, np.cos(1000 * 1e6 ** (-6 / 14)), atol=1e-4)
    assert abs(right - wrong) > 0.1


def test_llama3_bands():
    """Wave lengths under 2048 stay, over 8192 are divided by 8, between they blend."""
    plain = inverse_frequencies(Rope(theta=500000.0), 64)
    scaled = inverse_frequencies(LLAMA3, 64)
    length = 2 * np.pi / plain
    short, long = length < 2048, length > 8192
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-12)
    mid = ~short & ~long
    assert mid.any() and short.any() and long.any()
    share = (8192 / length[mid] - 1) / 3
    np.testing.assert_allclose(scaled[mid], plain[mid] * (share + (1 - share) / 8), rtol=1e-12)


def test_linear_scaling_divides():
    np.testing.assert_allclose(
        inverse_frequencies(Rope(kind="linear", factor=4.0), 10),
        inverse_frequencies(Rope(), 10) / 4,
    )


def test_pairs_are_half_split():
    """D03: pairs (i, i + H/2); interleaved pairs turn [1, 0, 0, 0] into [cos, sin, 0, 0]."""
    x = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1.0)
    out = rotate(x, rope_tables(jnp.ones((1, 1), jnp.int32), Rope(), 4))[0, 0, 0]
    np.testing.assert_allclose(out, [np.cos(1.0), 0, np.sin(1.0), 0], atol=1e-6)


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 10)), jnp.float32) for _ in range(2))
    at = lambda x, p: rotate(x, rope_tables(jnp.full((1, 1), p), Rope(), 10))[0, 0, 0]  # noqa: E731
    near, far = at(q, 5) @ at(k, 2), at(q, 105) @ at(k, 102)
    np.testing.assert_allclose(near, far, atol=1e-4)
    assert abs(near - at(q, 5) @ at(k, 3)) > 1e-3


# Attention


def plain_attention(q, k, v, mask):
    """Row by row in NumPy; query head n reads key head n // R."""
    out = np.zeros(q.shape)
    for b, t, n in np.ndindex(q.shape[:3]):
        g = n // (q.shape[2] // k.shape[2])
        seen = np.flatnonzero(mask[b, t])
        if len(seen):
            s = k[b, seen, g] @ q[b, t, n] / np.sqrt(q.shape[3])
            w = np.exp(s - s.max())
            out[b, t, n] = w @ v[b, seen, g] / w.sum()
    return out


def test_attend_groups_heads_and_zeroes_blind_queries():
    """T20: heads 0..2 share key head 0; tiling (n % 2) gives another result. B10: no NaN."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(3, n, h, 5)).astype("f4") for n, h in ((5, 6), (7, 2), (7, 2)))
    mask = rng.random((3, 5, 7)) < 0.5
    mask[1, 2] = False
    out = np.asarray(attend(*map(jnp.asarray, (q, k, v, mask))))
    np.testing.assert_allclose(out, plain_attention(q, k, v, mask), atol=1e-5)
    assert (out[1, 2] == 0).all()
    tiled = np.stack([plain_attention(q[:, :, [n]], k[:, :, [n % 2]], v[:, :, [n % 2]], mask)
                      for n in range(6)], axis=2)[..., 0, :]  # fmt: skip
    assert np.abs(out - tiled).max() > 0.1
    grad = jax.grad(lambda q: attend(q, *map(jnp.asarray, (k, v, mask))).sum())(jnp.asarray(q))
    assert np.isfinite(grad).all()


def test_positions_come_from_each_rows_mask():
    """B01: pads get 0; positions shared by the batch would be 0..4 in every row."""
    mask = jnp.asarray([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], bool)
    assert token_positions(mask).tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]


def test_window_counts_positions_not_slots():
    """T11: window 3 after two pads: the token at position 4 sees 2, 3 and 4, the first itself."""
    positions = jnp.asarray([[0, 0, 0, 1, 2, 3, 4]])
    real = jnp.asarray([[0, 0, 1, 1, 1, 1, 1]], bool)
    mask = causal_mask(positions, positions, real, window=3)
    assert mask[0, 6].tolist() == [False] * 4 + [True] * 3
    assert mask[0, 2].tolist() == [False, False, True] + [False] * 4


def test_rms_norm():
    x = np.random.default_rng(2).normal(size=(3, 7)).astype("f4") * 100
    w = np.linspace(0.5, 2, 7).astype("f4")
    out = RMSNorm(1e-5).apply({"params": {"scale": w}}, jnp.asarray(x))
    np.testing.assert_allclose(
        out, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w, rtol=1e-5
    )
    # In half precision squares of 300 overflow unless the mean is taken in float32.
    wide = RMSNorm(1e-5).apply(
        {"params": {"scale": jnp.ones(7, jnp.float16)}}, jnp.full((1, 7), 300, jnp.float16)
    )
    np.testing.assert_allclose(np.asarray(wide, np.float32), 1.0, atol=1e-2)
