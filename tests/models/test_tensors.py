"""Tensors to parameters and back: orientation, grouping, dtype, one tensor at a time."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hf_folders import checkpoint

from gradejax.models.config import DecoderConfig
from gradejax.models.layers import Linear
from gradejax.models.lazy import LazyTensor
from gradejax.models.tensors import (
    gather,
    parameter_shapes,
    params_from_tensors,
    place,
    tensors_from_params,
)
from gradejax.models.weight_names import Entry, Part, gated_parts, qkv_parts, weight_table


def config(**entries):
    base = {"family": "qwen2", "vocab_size": 13, "width": 2048, "num_layers": 1, "num_heads": 16,
            "num_kv_heads": 2, "head_dim": 128, "mlp_width": 17, "max_positions": 32,
            "qkv_bias": True}  # fmt: skip
    return DecoderConfig(**(base | entries))


@pytest.mark.parametrize("kind, product", [("plain", [21.0, 43.0]), ("conv", [31.0, 42.0])])
def test_kernels_are_out_in_and_conv_weights_are_turned(kind, product):
    """D02: one square torch weight; taken the other way each gives the other's numbers."""
    weight = np.array([[1.0, 2.0], [3.0, 4.0]])
    entry = Entry("w", (2, 2), (Part("w", 2),), kind)
    target = {"w": np.zeros((2, 2))}
    place(entry, weight, target)
    np.testing.assert_array_equal(target["w"] @ np.array([1.0, 10.0]), product)
    np.testing.assert_array_equal(gather(entry, target), weight)


def test_an_expert_s_kernel_is_in_out():
    weight = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    entry = Entry("w", (3, 2), (Part("w", 3, (1,)),), "expert")
    target = {"w": np.zeros((2, 2, 3))}
    place(entry, weight, target)
    np.testing.assert_array_equal(np.array([1.0, 10.0]) @ target["w"][1], [21.0, 43.0, 65.0])
    np.testing.assert_array_equal(gather(entry, target), weight)


SMALL = config(width=3, num_heads=6, num_kv_heads=2, head_dim=5, rope=None)  # R = 3


@pytest.mark.parametrize("kind", ["plain", "conv"])
def test_fused_qkv_goes_to_its_groups(kind):
    """T19, T20: rows q | k | v of 30, 10 and 10; query head 3k + r stands in group k, place r."""
    parts = tuple(qkv_parts(SMALL, "qkv").values())
    weight = np.arange(150.0).reshape(50, 3)
    entry = Entry("qkv", (50, 3), parts, kind)
    if kind == "conv":
        weight, entry = weight.T, Entry("qkv", (3, 50), parts, "conv")
    target = {"qkv": np.full((2, 5, 5, 3), -1.0)}
    place(entry, weight, target)
    rows = weight if kind == "plain" else weight.T
    for head in range(6):
        np.testing.assert_array_equal(
            target["qkv"][head // 3, head % 3], rows[5 * head : 5 * head + 5]
        )
    for head in range(2):
        at = 30 + 5 * head
        np.testing.assert_array_equal(target["qkv"][head, 3], rows[at : at + 5])
        np.testing.assert_array_equal(target["qkv"][head, 4], rows[at + 10 : at + 15])
    np.testing.assert_array_equal(gather(entry, target), weight)


def test_gate_comes_before_up():
    """T19: gate is the first half of phi3's gate_up."""
    parts = tuple(gated_parts(config(mlp_width=4), "m").values())
    entry, weight = Entry("m", (8, 3), parts), np.arange(24.0).reshape(8, 3)
    target = {"m": np.zeros((2, 4, 3))}
    place(entry, weight, target)
    np.testing.assert_array_equal(target["m"][0], weight[:4])
    np.testing.assert_array_equal(target["m"][1], weight[4:])
    np.testing.assert_array_equal(gather(entry, target), weight)


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
    ours = parameter_shapes(config())
    assert ours["layers_0/attn/qkv/kernel"] == (2, 8 + 2, 128, 2048)
    assert ours["layers_0/attn/qkv/bias"] == (2, 8 + 2, 128)
    assert ours["layers_0/attn/o/kernel"] == (2048, 2, 8, 128)
    assert ours["layers_0/mlp/gate_up/kernel"] == (2, 17, 2048)
    assert "layers_0/attn/o/bias" not in ours


def test_bias_is_added():
    """D05: [2 + 2 + .3, -4 - .7]; without the bias [4, -4]."""
    weight, bias = np.array([[1.0, 0.5], [0.0, -1.0]]), np.array([0.3, -0.7])
    params = {"kernel": np.zeros((1, 2, 2)), "bias": np.zeros((1, 2))}
    place(Entry("q", (2, 2), (Part("kernel", 2),)), weight, params)
    place(Entry("b", (2,), (Part("bias", 2),)), bias, params)
    out = Linear((1, 2), bias=True).apply({"params": params}, jnp.array([2.0, 4.0]))
    np.testing.assert_allclose(out[0], [4.3, -4.7], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_each_tensor_is_read_once_and_cast(dtype):
    """No more than one reader's array is alive at a time, and what is kept has the dtype."""
    ckpt, reads = checkpoint("qwen2"), []
    tensors = tensors_from_params(ckpt.config, ckpt.params, "float32")

    def reader(name):
        def read():
            reads.append(name)
            return tensors[name]

        return read

    params = params_from_tensors(ckpt.config, {n: reader(n) for n in tensors}, dtype=dtype)
    assert sorted(reads) == sorted(tensors)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b.astype(dtype)), params, ckpt.params
    )


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="'int8'; choose from float32, bfloat16, float16"):
        params_from_tensors(SMALL, {}, dtype="int8")


@pytest.mark.parametrize("lazy", [False, True], ids=["whole", "stretches"])
@pytest.mark.parametrize(
    "stored, dtype, value, able",
    [
        (np.float32, "float16", 7e4, "float32 or bfloat16"),
        (np.float32, "float16", -65520.0, "float32 or bfloat16"),  # the first that rounds to inf
        (ml_dtypes.bfloat16, "float16", -1e5, "float32 or bfloat16"),
        (np.float32, "bfloat16", 3.4e38, "float32"),
        (np.float64, "float32", -1e39, "none of those"),
    ],
)
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.b"])
def test_a_cast_makes_no_infinities(name, stored, dtype, value, able, lazy):
    """They would pass as weights: 70,000 is finite in the file and inf in float16."""
    ckpt = checkpoint("qwen2")
    tensors = tensors_from_params(ckpt.config, ckpt.params, "float32")
    name = next(n for n in tensors if n.startswith(name))
    tensors = {k: v.astype(stored) for k, v in tensors.items()}

    def load(value):
        tensors[name].reshape(-1)[3] = value
        at = lambda a: LazyTensor(a.shape, lambda i, j: a[i:j])  # noqa: E731
        read = {k: at(v) if lazy else lambda v=v: v for k, v in tensors.items()}
        return params_from_tensors(ckpt.config, read, dtype=dtype, where="x")

    largest = 0.99 * float(jnp.finfo(dtype).max)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(load(largest)))
    with pytest.raises(ValueError, match=f"'{name}' of x .*{dtype} would .* hold them: {able}"):
        load(value)


def test_what_is_written_stays_finite():
    ckpt = checkpoint("qwen2")
    wide = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(-7e4), ckpt.params)
    with pytest.raises(ValueError, match="of the parameters holds values of up to 70000, which fl"):
        tensors_from_params(ckpt.config, wide, "float16")
    assert all(np.isfinite(x).all() for x in tensors_from_params(
        ckpt.config, wide, "bfloat16").values())  # fmt: skip
