"""Weights in 8 bits: the rounding by hand, what is rounded, and the decoder on top of it."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, expected

from gradejax.models.cache import empty_cache
from gradejax.models.hf_weights import load_checkpoint
from gradejax.models.lora import init_lora, merge
from gradejax.models.quantize import (
    Int8,
    attend,
    lookup,
    product,
    quantize,
    rounded,
    tree_bytes,
)

EXPERTS = pathlib.Path(__file__).parents[2] / "checkpoints"


def test_rounding_by_hand():
    """Channel 0: largest 2.54, step .02; 1: step .1 and -12.7 at the limit; 2: zeros."""
    weight = jnp.asarray([[2.54, 0.34, 0.0], [-0.03, -12.7, 0.0], [0.011, 0.06, 0.0]])
    got = rounded(weight, (0,))
    assert got.values.tolist() == [[127, 3, 0], [-2, -127, 0], [1, 1, 0]]
    np.testing.assert_allclose(got.scale, [[0.02, 0.1, 1.0]], rtol=1e-6)
    assert got.values.dtype == jnp.int8 and np.isfinite(got.widened()).all()
    gap = np.abs(got.widened() - weight)
    assert (gap <= np.asarray(got.scale) / 2 + 1e-6).all()


def test_products_equal_those_of_the_widened_matrix():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 3, 5, 7)), jnp.float32)
    kernel = rounded(jnp.asarray(rng.normal(size=(5, 7, 11, 2)), jnp.float32), (0, 1))
    assert kernel.scale.shape == (1, 1, 11, 2)
    want = jnp.einsum("abij,ijkl->abkl", x, kernel.widened())
    np.testing.assert_allclose(product(x, kernel, 2), want, atol=1e-5, rtol=1e-5)
    part = product(x, kernel[:, :, 3:5], 2)
    np.testing.assert_allclose(part, want[:, :, 3:5], atol=1e-5, rtol=1e-5)
    table = rounded(jnp.asarray(rng.normal(size=(13, 7)), jnp.float32), (1,))
    ids = jnp.asarray([[4, 12, 0]])
    np.testing.assert_array_equal(lookup(table, ids, jnp.float32), table.widened()[ids])
    np.testing.assert_allclose(
        attend(x, table), jnp.einsum("abie,ve->abiv", x, table.widened()), atol=1e-5, rtol=1e-5
    )
    for y in (product(x.astype(jnp.bfloat16), kernel, 2), attend(x.astype(jnp.bfloat16), table),
              lookup(table, ids, jnp.bfloat16)):  # fmt: skip
        assert y.dtype == jnp.bfloat16


def test_what_is_rounded():
    """Matrices and the embedding; norms and biases are the same arrays as before."""
    params = checkpoint("llama_sharded").params
    got = quantize(params)
    for path, x in jax.tree_util.tree_leaves_with_path(
        got, is_leaf=lambda x: isinstance(x, Int8)
    ):
        old, name = params, [k.key for k in path]
        for key in name:
            old = old[key]
        if name[-1] in ("kernel", "embedding"):
            assert isinstance(x, Int8) and x.shape == old.shape
        else:
            assert x is old
    with pytest.raises(ValueError, match="in 8 bits already"):
        quantize(got)
    with pytest.raises(ValueError, match="no matrix of a decoder"):
        quantize({"params": {"layers_0": {"attn_norm": {"scale": jnp.ones(3)}}}})


@functools.cache
def expert(name):
    return load_checkpoint(EXPERTS / name)


def prompts(name):
    """Rows of a tiny expert's own kind of text, [B, T] and mask."""
    from gradejax.generation.text import load_tokenizer

    tokenizer = load_tokenizer(EXPERTS / name)
    texts = json.loads((pathlib.Path(__file__).parent / "quantize_texts.json").read_text())
    rows = [tokenizer.encode(t) for t in texts]
    return rows


SHAPES = {"q": 1}
