"""What a causal decoder must and must not depend on: later tokens, neighbours, packing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, expected, rows_of

from gradejax.models.cache import empty_cache
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import SHARED_SEGMENT, Decoder, token_positions

FAMILIES = ("llama", "phi3", "gemma3", "gpt_oss", "gpt2")


@pytest.mark.parametrize("name", FAMILIES)
def test_later_tokens_have_no_gradient(name):
    """Gradient of the state at place 5 by each place's embedding: zero after 5, not before.

    Windows are of 7, so all six places before reach it.
    """
    ckpt = checkpoint(name)
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(1, 11, ckpt.config.width)), jnp.float32)
    real = jnp.ones((1, 11), bool)
    positions = token_positions(real)

    def at_five(x):
        out = ckpt.model.apply(ckpt.params, x, positions, real, method="blocks")
        return jnp.sum(out[0, 5] ** 2)

    size = np.abs(jax.jit(jax.grad(at_five))(x)[0]).max(axis=1)
    assert (size[6:] == 0).all()
    assert (size[:6] > 0).all()


def test_window_bounds_the_reach():
    """Two layers of window 7 reach 12 places back and no further."""
    ckpt = checkpoint("phi3")
    x = jnp.asarray(np.random.default_rng(4).normal(size=(1, 19, 36)), jnp.float32)
    real = jnp.ones((1, 19), bool)
    positions = token_positions(real)

    def last(x):
        out = ckpt.model.apply(ckpt.params, x, positions, real, method="blocks")
        return jnp.sum(out[0, 18] ** 2)

    reach = jax.grad(last)(x)
    size = np.abs(reach[0]).max(axis=1)
    assert (size[:6] == 0).all() and (size[6:] > 0).all()


@functools.cache
def hidden_fn(name):
    model = checkpoint(name).model
    return jax.jit(lambda t, m, p, s: model.apply(
        checkpoint(name).params, t, m, positions=p, segments=s, method="hidden"))  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_rows_equal_solo_runs(name):
    """Two samples behind a common prefix of 3, in one row with padding at its end."""
    prefix, (a, b) = [5, 9, 4], (rows_of(name)[1][:6], rows_of(name)[2])
    assert a[0] != b[0]
    row = [*prefix, *a, *b, 0, 0]
    segments = [SHARED_SEGMENT] * 3 + [1] * len(a) + [2] * len(b) + [0, 0]
    positions = [0, 1, 2, *range(3, 3 + len(a)), *range(3, 3 + len(b)), 0, 0]
    packed = hidden_fn(name)(*(jnp.asarray([x]) for x in (
        row, np.array(segments) != 0, positions, segments)))[0]  # fmt: skip
    for at, sample in ((3, a), (3 + len(a), b)):
        n = len(sample)
        solo = hidden_fn(name)(
            jnp.asarray([[*prefix, *sample]]), jnp.ones((1, 3 + n), bool),
            jnp.arange(3 + n)[None, :], jnp.ones((1, 3 + n), jnp.int32),
        )[0]  # fmt: skip
        np.testing.assert_allclose(packed[:3], solo[:3], atol=1e-5)
        np.testing.assert_allclose(packed[at : at + n], solo[3:], atol=1e-5)
    # A row without segments lets the second sample read the first.
    one = jnp.ones((1, len(row)), jnp.int32)
    real = jnp.asarray([segments]) != 0
    loose = hidden_fn(name)(jnp.asarray([row]), real, jnp.asarray([positions]), one)[0]
    assert np.abs(loose - packed)[3 + len(a) : -2].max() > 0.01


def test_cached_positions_continue_each_row():
    """B01: after rows of 2, 5 and 4 tokens come 2, 5, 4 and then 3, 6, 5; not 5 and 6 for all."""
    ckpt = checkpoint("llama")
    mask = jnp.asarray([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], bool)
    out = ckpt.model.apply(
        ckpt.params, jnp.full((3, 5), 7), mask, cache=empty_cache(ckpt.config, 3, 7)
    )
    for _ in range(2):
        out = ckpt.model.apply(ckpt.params, jnp.full((3, 1), 8), cache=out.cache)
    assert out.cache.positions[:, 5:].tolist() == [[2, 3], [5, 6], [4, 5]]
    assert out.cache.filled.tolist() == [[*row, True, True] for row in mask.tolist()]
    assert int(out.cache.slot) == out.cache.length == 7


def test_last_only_is_the_last_column():
    ckpt = checkpoint("qwen2")
    tokens = jnp.asarray([rows_of("qwen2")[2]])
    whole = ckpt.model.apply(ckpt.params, tokens).logits
    last = ckpt.model.apply(ckpt.params, tokens, last_only=True).logits
    assert last.shape == (1, 1, 113)
    np.testing.assert_allclose(last, whole[:, -1:], atol=1e-5)


@pytest.mark.parametrize("name", ["gemma", "gpt2"])
def test_embeddings_in_place_of_tokens(name):
    """What ``embed`` gives, scaled (gemma) and before learned positions (gpt2), read as tokens are;
    soft embeddings put between tokens take positions of their own."""
    ckpt, row = checkpoint(name), jnp.asarray([rows_of(name)[1]])
    embed = lambda t: ckpt.model.apply(ckpt.params, t, method="embed")  # noqa: E731
    read = jax.jit(lambda e, c: ckpt.model.apply(ckpt.params, embeds=e, cache=c))
    np.testing.assert_allclose(
        read(embed(row), None).logits[0], expected(name)["solo_logits"], atol=3e-5
    )
    soft = jnp.asarray(np.random.default_rng(8).normal(size=(1, 3, 36)), jnp.float32)
    whole = read(jnp.concatenate([embed(row[:, :9]), soft, embed(row[:, 9:])], axis=1), None)
    cache, pieces = empty_cache(ckpt.config, 1, 29), []
    for piece in (embed(row[:, :9]), soft, embed(row[:, 9:])):
        out = read(piece, cache)
        cache = out.cache
        pieces.append(out.logits)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole.logits, atol=3e-5)
    assert cache.positions[0, :23].tolist() == list(range(23))


def test_tokens_or_embeddings():
    ckpt, row = checkpoint("qwen2"), jnp.asarray([[3, 4]])
    for both in ({}, {"tokens": row, "embeds": jnp.zeros((1, 2, 36))}):
        with pytest.raises(ValueError, match="give either tokens or embeds"):
            ckpt.model.apply(ckpt.params, **both)


def test_states_of_a_layer():
    """Negative counts from the end; layers above are not run, so their weights may be missing."""
    ckpt, row = checkpoint("gemma3"), jnp.asarray([rows_of("gemma3")[1]])
    run = lambda params, layer: ckpt.model.apply(  # noqa: E731
        params, row, layer=layer, method="hidden"
    )
    few = {"params": {k: ckpt.params["params"][k] for k in ("embedding", "layers_0", "layers_1")}}
    np.testing.assert_array_equal(run(few, 2), run(ckpt.params, -2))
    np.testing.assert_array_equal(run(ckpt.params, None), run(ckpt.params, 3))
    assert np.abs(run(ckpt.params, 2) - run(ckpt.params, 1)).max() > 0.1
    for layer in (4, -5):
        with pytest.raises(ValueError, match=f"layer must lie in 0 to 3 or -4 to -1, got {layer}"):
            run(ckpt.params, layer)


def test_remat_runs_each_block_again_and_changes_no_gradient():
    ckpt = checkpoint("qwen2")
    tokens = jnp.asarray([rows_of("qwen2")[1]])
    grad = lambda model: jax.grad(  # noqa: E731
        lambda p: jnp.sum(model.apply(p, tokens, method="hidden") ** 2)
    )
    plain, again = grad(ckpt.model), grad(ckpt.model.clone(remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3),
                 jax.jit(plain)(ckpt.params), jax.jit(again)(ckpt.params))  # fmt: skip
    equations = [e.primitive.name for e in jax.make_jaxpr(again)(ckpt.params).jaxpr.eqns]
    assert sum("remat" in name or "checkpoint" in name for name in equations) == 2


def test_segments_do_not_go_with_a_cache():
    ckpt = checkpoint("qwen2")
    with pytest.raises(ValueError, match="cannot be read through a cache"):
        ckpt.model.apply(ckpt.params, jnp.zeros((1, 3), jnp.int32), segments=jnp.ones((1, 3)),
                         cache=empty_cache(ckpt.config, 1, 5))  # fmt: skip


def test_shapes_with_prime_dimensions():
    """Every dimension prime and distinct: a transposed or reused axis cannot fit by chance."""
    config = DecoderConfig(
        family="llama", vocab_size=53, width=37, num_layers=3, num_heads=5, num_kv_heads=5,
        head_dim=2 * 7, mlp_width=41, max_positions=43,
    )  # fmt: skip
    model = Decoder(config)
    tokens = jax.ShapeDtypeStruct((11, 13), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    out = jax.eval_shape(model.apply, params, tokens)
    assert out.logits.shape == (11, 13, 53) and out.hidden.shape == (11, 13, 37)
    cache = jax.eval_shape(lambda: empty_cache(config, 11, 29))
    out = jax.eval_shape(lambda p, t, c: model.apply(p, t, cache=c), params, tokens, cache)
    assert jax.tree.map(jnp.shape, out.cache.own) == (((11, 5, 14, 29), (11, 5, 29, 14)),) * 3
