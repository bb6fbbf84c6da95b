"""Weights in 8 bits: the rounding by hand, what is rounded, and the decoder on top of it."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, expected

from gradejax.generation.text import load_tokenizer
from gradejax.models.cache import empty_cache
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.hf_weights import load_checkpoint, save_checkpoint
from gradejax.models.lora import init_lora
from gradejax.models.lora_merge import merge
from gradejax.models.quantize import (
    Int8,
    lookup,
    product,
    quantize,
    rounded,
    tree_bytes,
    weight_first,
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


def test_groups_by_hand():
    """Inputs 0, 1 with largest 2.54 and inputs 2, 3 with .0254: steps of .02 and .0002."""
    weight = jnp.asarray([[2.54], [0.03], [0.0254], [-0.0003]])
    whole, got = rounded(weight, (0,)), rounded(weight, (0,), 2)
    assert got.scale.shape == (2, 1) and got.scale.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.scale.astype(jnp.float32), [[0.02], [0.0002]], rtol=2**-8)
    assert got.values.tolist() == [[127], [1], [127], [-1]]
    assert whole.values.tolist() == [[127], [2], [1], [0]]  # the small ones are lost
    assert rounded(weight, (0,), 3).scale.shape == (1, 1)  # 3 does not divide 4


@pytest.mark.parametrize("group", [None, 7])
def test_products_equal_those_of_the_widened_matrix(group):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 3, 5, 14)), jnp.float32)
    kernel = rounded(jnp.asarray(rng.normal(size=(11, 4, 5, 14)), jnp.float32), (2, 3), group)
    assert kernel.scale.shape == ((11, 4, 1, 1) if group is None else (11, 4, 5, 2))
    want = jnp.einsum("abij,klij->abkl", x, kernel.widened())
    np.testing.assert_allclose(product(x, kernel, 2), want, atol=1e-5, rtol=1e-5)
    part = product(x, kernel[:, 1:3], 2)
    np.testing.assert_allclose(part, want[..., 1:3], atol=1e-5, rtol=1e-5)
    table = rounded(jnp.asarray(rng.normal(size=(13, 14)), jnp.float32), (1,), group)
    ids = jnp.asarray([[4, 12, 0]])
    np.testing.assert_array_equal(lookup(table, ids, jnp.float32), table.widened()[ids])
    np.testing.assert_allclose(
        product(x, table), jnp.einsum("abie,ve->abiv", x, table.widened()), atol=1e-5, rtol=1e-5
    )
    for y in (product(x.astype(jnp.bfloat16), kernel, 2), product(x.astype(jnp.bfloat16), table),
              lookup(table, ids, jnp.bfloat16)):  # fmt: skip
        assert y.dtype == jnp.bfloat16


@pytest.mark.parametrize("rows", [(1,), (2,), (4, 8), (128,), (129,), (0,)])
@pytest.mark.parametrize("out", [(7,), (3, 2)])
def test_a_product_is_the_same_whichever_factor_goes_first(rows, out):
    """Values and both gradients; 2 to 128 rows of a CPU take the weight first."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(*rows, 5, 3)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*out, 5, 3)), jnp.float32)
    want = np.tensordot(x, kernel, ((-2, -1), (-2, -1)))
    run = jax.jit(lambda x, k: product(x, k, 2))
    np.testing.assert_allclose(run(x, kernel), want, atol=1e-5)
    weight = rng.normal(size=want.shape).astype(np.float32)
    got = jax.jit(jax.grad(lambda x, k: jnp.sum(run(x, k) * weight), (0, 1)))(x, kernel)
    left, right = len(rows), len(out)
    np.testing.assert_allclose(
        got[0], np.tensordot(weight, kernel, (range(left, left + right), range(right))), atol=1e-4
    )
    np.testing.assert_allclose(
        got[1], np.tensordot(weight, x, (range(left), range(left))), atol=1e-4
    )
    many = int(np.prod(rows))
    turned = f"f32[{np.prod(out)},{many}]" in run.lower(x, kernel).compile().as_text()
    assert turned == (many in (2, 32, 128)) == weight_first(many)


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
def written_by(name):
    """(checkpoint, rows that a tiny expert wrote itself after four questions, its logits there)."""
    ckpt = load_checkpoint(EXPERTS / name)
    tokenizer = load_tokenizer(EXPERTS / name)
    rows = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False,
                                      add_generation_prompt=True, tokenize=True)[-24:]
        for text in QUESTIONS
    ]  # fmt: skip
    width = max(map(len, rows))
    tokens = jnp.asarray([[0] * (width - len(r)) + list(r) for r in rows])
    mask = jnp.arange(width)[None, :] >= jnp.asarray([width - len(r) for r in rows])[:, None]
    step = jax.jit(lambda p, t, m, c: ckpt.model.apply(p, t, m, cache=c, last_only=True))
    out = step(ckpt.params, tokens, mask, empty_cache(ckpt.config, len(rows), width + 12))
    one = jnp.ones((len(rows), 1), bool)
    for _ in range(12):
        new = jnp.argmax(out.logits[:, -1:], axis=-1)
        tokens, mask = jnp.concatenate([tokens, new], 1), jnp.concatenate([mask, one], 1)
        out = step(ckpt.params, new, one, out.cache)
    return ckpt, tokens, mask


QUESTIONS = ("What is 17 + 25 - 8?", "Calculate 36 / 4 + 7 * 2.", "Sort these: 9, 3, 14, 1.",
             "Is it true that all cats are mammals?")  # fmt: skip


def relative(got, want):
    return float(np.linalg.norm(np.asarray(got - want)) / np.linalg.norm(np.asarray(want)))


@pytest.mark.parametrize("name", ["algorithmic", "arithmetic", "logic", "orchestrator"])
def test_tiny_experts_stay_within_two_percent(name):
    """Logits .5 to 1.0%, greedy choices .97 to .99 the same, .52 to .53 of the bytes of bf16."""
    ckpt, tokens, mask = written_by(name)
    small = quantize(ckpt.params)
    read = jax.jit(lambda p: ckpt.model.apply(p, tokens, mask).logits)
    real = np.asarray(mask)
    want, got = np.asarray(read(ckpt.params))[real], np.asarray(read(small))[real]
    assert 1e-4 < relative(got, want) < 0.02
    assert np.mean(got.argmax(-1) == want.argmax(-1)) > 0.94
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), ckpt.params)
    assert tree_bytes(small) <= 0.55 * tree_bytes(half)  # the embedding included


@pytest.mark.parametrize("group", [None, 2], ids=["channels", "groups"])
@pytest.mark.parametrize("name", ["gpt_oss", "gpt2", "llama_sharded"])
def test_every_path_reads_8_bits(name, group):
    """Experts, learned positions and Conv1D, a tied head: equal to the widened tree, cached too."""
    ckpt, want = checkpoint(name), expected(name)
    small = quantize(ckpt.params, group)
    wide = jax.tree.map(lambda x: x.widened() if isinstance(x, Int8) else x, small,
                        is_leaf=lambda x: isinstance(x, Int8))  # fmt: skip
    tokens, mask = jnp.asarray(want["tokens"]), jnp.asarray(want["mask"])
    read = jax.jit(lambda p: ckpt.model.apply(p, tokens, mask).logits)
    real = want["mask"]
    plain = np.asarray(read(wide))
    np.testing.assert_allclose(np.asarray(read(small))[real], plain[real], atol=2e-4, rtol=1e-4)
    step = jax.jit(lambda p, t, m, c: ckpt.model.apply(p, t, m, cache=c))
    cache, pieces = empty_cache(ckpt.config, 3, 23), []
    for at in (slice(0, 21), slice(21, 22), slice(22, 23)):
        out = step(small, tokens[:, at], mask[:, at], cache)
        cache = out.cache
        pieces.append(out.logits)
    got = np.concatenate(pieces, axis=1)
    np.testing.assert_allclose(got[real], plain[real], atol=2e-4, rtol=1e-4)


def test_adapters_on_an_8_bit_base():
    """Their delta is added after the scale, and their gradients pass through the rounded base."""
    ckpt, want = checkpoint("qwen2"), expected("qwen2")
    small = quantize(ckpt.params)
    lora = init_lora(ckpt.config, jax.random.key(0), (2, 3), alpha=6).for_rows([1, 0, -1])
    read = jax.jit(lambda p, x: ckpt.model.apply(p, want["tokens"], want["mask"], lora=x).logits)
    # Not bit for bit here: scale, bias and delta are fused, and roundings with them.
    np.testing.assert_allclose(read(small, lora), read(small, None), atol=1e-5, rtol=1e-5)
    lora = jax.tree.map(lambda x: x + 0.05, lora).for_rows([1, 0, -1])
    wide = jax.tree.map(lambda x: x.widened() if isinstance(x, Int8) else x, small,
                        is_leaf=lambda x: isinstance(x, Int8))  # fmt: skip
    real = want["mask"]
    np.testing.assert_allclose(
        np.asarray(read(small, lora))[real], np.asarray(read(wide, lora))[real],
        atol=1e-4, rtol=1e-4,
    )
    loss = lambda tree, p: jnp.sum(read(p, lora.replace(tree=tree)) ** 2)  # noqa: E731
    grads = [jax.tree.leaves(jax.grad(loss)(lora.tree, p)) for p in (small, wide)]
    for got, plain in zip(*grads, strict=True):
        np.testing.assert_allclose(got, plain, atol=1e-4 * float(np.abs(plain).max()), rtol=1e-3)
    with pytest.raises(ValueError, match="layers_./.*: the base is in 8 bits; merge before"):
        merge(small, lora, jnp.ones(2))


@pytest.mark.parametrize("group", [None, 32], ids=["channels", "groups"])
def test_the_tree_is_never_widened_at_once(group):
    """Six layers read in a loop: the temporaries are a fraction of the matrices in float32.

    Widened plainly, all of them are at hand at once: 1.02 of the float32 tree, where this has .11.
    """
    config = DecoderConfig(
        family="llama", vocab_size=64, width=64, num_layers=6, num_heads=4, num_kv_heads=2,
        head_dim=16, mlp_width=256, max_positions=64, tied=True,
    )  # fmt: skip
    model = Decoder(config)
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    small = jax.eval_shape(lambda p: quantize(p, group), params)

    def decode(params, token):
        def body(_, carry):
            token, cache = carry
            out = model.apply(params, token, cache=cache)
            return jnp.argmax(out.logits, axis=-1), out.cache

        cache = empty_cache(config, 1, 8)
        return jax.lax.fori_loop(0, 8, body, (token, cache))[0]

    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    compiled = jax.jit(decode).lower(small, token).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.25 * tree_bytes(params)


def test_8_bits_are_not_written(tmp_path):
    ckpt = checkpoint("llama_sharded")
    with pytest.raises(ValueError, match="expected parameters of floats, got some in 8 bits"):
        save_checkpoint(tmp_path, ckpt.config, quantize(ckpt.params))
