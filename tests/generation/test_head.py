"""The chunked head: values and gradients of the plain computation, and its memory and work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax import ops
from gradejax.generation.head import CHUNK_ELEMENTS, chunk_for, token_logprobs
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder


def make(tied, vocab=37, width=11, **options):
    return Decoder(DecoderConfig(
        family="llama", vocab_size=vocab, width=width, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=2, mlp_width=3, max_positions=512, tied=tied, **options,
    ))  # fmt: skip


def plain(model, params, hidden, tokens, temperature, vocab):
    logits = model.apply(params, hidden, method="logits") / temperature
    if vocab is not None:
        ids = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,))
        logits = jnp.where(ids < vocab, logits, -jnp.inf)
    return ops.token_logprobs(logits, tokens)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def case(request):
    model = make(request.param)
    params = model.init(jax.random.key(1), jnp.ones((1, 2), jnp.int32))
    keys = jax.random.split(jax.random.key(2), 3)
    return {
        "model": model,
        "params": params,
        "hidden": 3 * jax.random.normal(keys[0], (3, 7, 11)),
        "tokens": jax.random.randint(keys[1], (3, 7), 0, 31),
        "weight": jax.random.normal(keys[2], (3, 7)),
    }


@pytest.mark.parametrize("chunk", [1, 4, 21, 64, None])
@pytest.mark.parametrize("temperature, vocab", [(1.0, None), (0.7, 31)])
def test_values_and_gradients_are_the_plain_ones(case, chunk, temperature, vocab):
    """Of the states alone (frozen head) and of states and head together."""
    model, tokens, weight = case["model"], case["tokens"], case["weight"]

    def ours(params, hidden):
        out = token_logprobs(model, params, hidden, tokens, temperature=temperature, vocab=vocab,
                             chunk=chunk)  # fmt: skip
        return (jnp.sin(out) * weight).sum(), out

    def theirs(params, hidden):
        out = plain(model, params, hidden, tokens, temperature, vocab)
        return (jnp.sin(out) * weight).sum(), out

    for argnums in (1, (0, 1)):
        (_, out), got = jax.jit(jax.value_and_grad(ours, argnums, has_aux=True))(
            case["params"], case["hidden"])  # fmt: skip
        (_, want_out), want = jax.jit(jax.value_and_grad(theirs, argnums, has_aux=True))(
            case["params"], case["hidden"])  # fmt: skip
        np.testing.assert_allclose(out, want_out, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)
    if vocab is not None and not model.config.tied:
        kernel = np.asarray(got[0]["params"]["head"]["kernel"])
        assert (kernel[vocab:] == 0).all() and np.abs(kernel[:vocab]).max() > 0


def test_uniform_logits_have_log_of_the_vocabulary(case):
    """log 1/37 = -3.6109; with ids from 31 on left out log 1/31 = -3.4340, not -3.6109."""
    zero = jnp.zeros((5, 11))
    run = lambda vocab: token_logprobs(  # noqa: E731
        case["model"], case["params"], zero, jnp.arange(5), vocab=vocab, chunk=2
    )
    np.testing.assert_allclose(run(None), -3.6109179, atol=1e-6)
    np.testing.assert_allclose(run(31), -3.4339872, atol=1e-6)


def test_what_is_left_out_or_unknown():
    """An id beyond the sampler's vocabulary has probability 0; one beyond the model's is NaN."""
    model = make(False)
    params = model.init(jax.random.key(1), jnp.ones((1, 2), jnp.int32))
    out = token_logprobs(model, params, jnp.ones((3, 11)), jnp.asarray([30, 31, 37]), vocab=31)
    assert np.isfinite(out[0]) and np.isneginf(out[1]) and np.isnan(out[2])


def test_a_place_of_no_weight_gives_no_gradient():
    """B10: padding may hold any state, even one that is not finite."""
    model = make(True)
    params = model.init(jax.random.key(1), jnp.ones((1, 2), jnp.int32))
    hidden = jnp.ones((4, 11)).at[1].set(jnp.nan)
    keep = jnp.asarray([True, False, True, True])
    total = lambda h: jnp.where(  # noqa: E731
        keep, token_logprobs(model, params, h, jnp.arange(4), chunk=4), 0
    ).sum()
    grad = jax.grad(total)(hidden)
    assert (np.asarray(grad[1]) == 0).all() and np.isfinite(grad).all()
    assert np.abs(grad[0]).max() > 0


def test_bfloat16_states_are_scored_in_float32(case):
    """T7: logits are raised before the log-softmax; between 2 and 4 bfloat16 steps by .0156."""
    model = make(case["model"].config.tied, vocab=37).clone(dtype=jnp.bfloat16)
    hidden = (case["hidden"] / 30).astype(jnp.bfloat16)  # logits near 0, log p near -3.6
    out, pull = jax.vjp(lambda h: token_logprobs(model, case["params"], h, case["tokens"]), hidden)
    want = plain(model, case["params"], hidden, case["tokens"], 1.0, None)
    assert out.dtype == jnp.float32 and pull(jnp.ones_like(out))[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(out, want, atol=2e-3)


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_memory_and_work_of_a_large_vocabulary(trained):
    """[64·288, 576] × 49,152: all logits would be 3.6 GB, and the bound is 256 MB.

    Work is read where all tokens are one chunk (a loop's body is counted once): two products for
    a frozen head, logits and their pull-back; recomputing would take three.
    """
    model = make(True, vocab=49_152, width=576)
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def total(hidden, params, ids, weight, chunk):
        return (token_logprobs(model, params, hidden, ids, chunk=chunk) * weight).sum()

    def compiled(count, chunk):
        kind = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
        ids = jax.ShapeDtypeStruct((count,), jnp.int32)
        grad = jax.jit(jax.value_and_grad(total, (0, 1) if trained else 0), static_argnums=4)
        return grad.lower(kind(count, 576), params, ids, kind(count), chunk).compile()

    used = compiled(64 * 288, None).memory_analysis().temp_size_in_bytes
    assert used < (256e6 if trained else 100e6)
    if not trained:
        product = 2 * 64 * 576 * 49_152
        assert 2 * product < compiled(64, 64).cost_analysis()["flops"] < 2.1 * product


def test_chunk_for():
    assert chunk_for(49_152) == 128 and chunk_for(1024) == 8192 and chunk_for(2**30) == 16
    assert 49_152 * chunk_for(49_152) <= CHUNK_ELEMENTS


def test_bad_calls(case):
    run = lambda tokens, **options: token_logprobs(  # noqa: E731
        case["model"], case["params"], case["hidden"], tokens, **options
    )
    with pytest.raises(ValueError, match="temperature must be > 0 to score, got 0"):
        run(case["tokens"], temperature=0.0)
    with pytest.raises(ValueError, match=r"\(3, 7\); got tokens \(3, 6\)"):
        run(case["tokens"][:, 1:])
