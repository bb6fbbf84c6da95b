"""Our decoder against Hugging Face's own, on the committed random checkpoints.

The figures were made by tests/fixtures/make_hf_fixtures.py with torch transformers, and by Hugging
Face's Flax classes for the folder under GRADEJAX_SHARED.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import BY_LENGTH, NAMES, ROOT, checkpoint, expected, rows_of

from gradejax.models.cache import empty_cache
from gradejax.models.hf_weights import load_checkpoint

TOLERANCE = 3e-5  # logits reach 16; float32 alone gives 1.8e-5
ALL = NAMES + BY_LENGTH


@functools.cache
def reader(name):
    model = checkpoint(name).model
    return jax.jit(lambda tokens, mask: model.apply(checkpoint(name).params, tokens, mask))


def run(name, tokens, mask):
    out = reader(name)(jnp.asarray(tokens), jnp.asarray(mask))
    return np.asarray(out.logits), np.asarray(out.hidden)


@pytest.mark.parametrize("name", ALL)
def test_left_padded_batch_matches_torch(name):
    """Pads 0, 3 and 16; rows of 23 and 20 tokens pass windows of 7 and contexts of 16."""
    want = expected(name)
    real = want["mask"]
    assert (~real).sum(1).tolist() == [0, 3, 16]
    logits, hidden = run(name, want["tokens"], real)
    np.testing.assert_allclose(logits[real], want["logits"][real], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(hidden[real], want["hidden"][real], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_unpadded_row_matches_torch(name):
    want, row = expected(name), rows_of(name)[1]
    logits, _ = run(name, [row], np.ones((1, len(row)), bool))
    np.testing.assert_allclose(logits[0], want["solo_logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_right_padding_changes_nothing(name):
    want = expected(name)
    shape = want["tokens"].shape
    tokens, mask = np.full(shape, 7), np.zeros(shape, bool)
    for i, row in enumerate(rows_of(name)):
        tokens[i, : len(row)], mask[i, : len(row)] = row, True
    logits, _ = run(name, tokens, mask)
    left = want["logits"][want["mask"]]  # both list the real tokens row by row
    np.testing.assert_allclose(logits[mask], left, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_what_stands_in_padding_is_inert(name):
    want = expected(name)
    noise = np.where(want["mask"], want["tokens"], 99)
    logits, _ = run(name, noise, want["mask"])
    plain, _ = run(name, want["tokens"], want["mask"])
    np.testing.assert_array_equal(logits[want["mask"]], plain[want["mask"]])
    assert np.isfinite(logits).all()  # pads see nothing and give no NaN (B10)


@pytest.mark.parametrize("name", ALL)
def test_pooled_states_of_every_depth_match_torch(name):
    """Mean and last over real tokens, from the embeddings to the final norm."""
    want, ckpt = expected(name), checkpoint(name)
    real = jnp.asarray(want["mask"])
    weight = real[:, :, None] / jnp.sum(real, axis=1)[:, None, None]

    @jax.jit
    def run(tokens):
        depths = range(ckpt.config.num_layers + 1)
        states = [ckpt.model.apply(ckpt.params, tokens, real, layer=i, method="hidden")
                  for i in depths]  # fmt: skip
        return jnp.stack([jnp.stack([jnp.sum(x * weight, axis=1), x[:, -1]]) for x in states])

    np.testing.assert_allclose(run(want["tokens"]), want["pooled"], atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("first", [1, 17], ids=["token_by_token", "prefill"])
def test_cached_equals_uncached(name, first):
    """The cache has slots to spare, so empty slots must be inert too.

    Where rotary scaling depends on the length, the rows' final lengths are said from the start.
    """
    want, ckpt = expected(name), checkpoint(name)
    tokens, mask = jnp.asarray(want["tokens"]), jnp.asarray(want["mask"])
    lengths = jnp.sum(mask, axis=1) if name in BY_LENGTH else None
    step = jax.jit(lambda t, m, c: ckpt.model.apply(ckpt.params, t, m, cache=c, lengths=lengths))
    cache, pieces, at = empty_cache(ckpt.config, 3, 29), [], 0
    while at < tokens.shape[1]:
        end = first if at == 0 else at + 1
        out = step(tokens[:, at:end], mask[:, at:end], cache)
        cache, at = out.cache, end
        pieces.append(out.logits)
    logits = np.concatenate(pieces, axis=1)
    np.testing.assert_allclose(
        logits[want["mask"]], want["logits"][want["mask"]], atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("name", BY_LENGTH)
def test_crossing_the_original_context_in_a_cache(name):
    """Read 10 at once and then one by one over a context of 16: as transformers' cache does, keys
    keep the turn they got. From the 17th token on this is no whole reading any more."""
    want, ckpt = expected(name), checkpoint(name)
    row = jnp.asarray(want["tokens"][:1])
    step = jax.jit(lambda t, c: ckpt.model.apply(ckpt.params, t, cache=c))
    cache, pieces = empty_cache(ckpt.config, 1, 23), []
    for start, end in [(0, 10), *((i, i + 1) for i in range(10, 23))]:
        out = step(row[:, start:end], cache)
        cache = out.cache
        pieces.append(out.logits[0])
    logits = np.concatenate(pieces)
    np.testing.assert_allclose(logits, want["cached_logits"], atol=TOLERANCE, rtol=0)
    assert np.abs(logits - want["logits"][0])[16:].max() > 0.05


@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_rows_length_does_not_come_from_its_neighbours(name):
    """transformers would read row 2, of 7 tokens, by the longest row's 23."""
    want, ckpt = expected(name), checkpoint(name)
    logits, _ = run(name, want["tokens"], want["mask"])
    batch = jnp.full((3,), 23)
    long = ckpt.model.apply(ckpt.params, want["tokens"], want["mask"], lengths=batch).logits
    assert np.abs(logits - long)[2, 16:].max() > 0.05
    np.testing.assert_allclose(logits[0], long[0], atol=TOLERANCE)


def test_sliding_window_matters():
    """Without its window phi3 gives other logits from the eighth token on, and only there."""
    ckpt, row = checkpoint("phi3"), rows_of("phi3")[0]
    assert ckpt.config.sliding_window == 7
    wide = ckpt.model.clone(config=ckpt.config.__class__(
        **{**vars(ckpt.config), "sliding_window": None}))  # fmt: skip
    logits = np.asarray(wide.apply(ckpt.params, jnp.asarray([row])).logits[0])
    gap = np.abs(logits - expected("phi3")["logits"][0]).max(axis=1)
    assert gap[:7].max() < TOLERANCE
    assert gap[7:].min() > 0.01


def test_written_by_hugging_faces_flax_classes(shared):
    folder = pathlib.Path(shared) / "fixtures" / "hf_flax" / "llama"
    ckpt = load_checkpoint(folder)
    with np.load(folder / "expected.npz", allow_pickle=False) as want:
        real = want["attention_mask"].astype(bool)
        out = jax.jit(ckpt.model.apply)(ckpt.params, jnp.asarray(want["input_ids"]), real)
        np.testing.assert_allclose(
            np.asarray(out.logits)[real], want["logits"][real], atol=1e-4, rtol=0
        )
        np.testing.assert_allclose(
            np.asarray(out.hidden)[real], want["last_hidden"][real], atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("name", ALL)
def test_loads_in_half_precision(name):
    """bfloat16 parameters give bfloat16 states near the float32 ones, and nothing overflows."""
    want = expected(name)
    ckpt = load_checkpoint(ROOT / name, dtype=jnp.bfloat16)
    assert {x.dtype for x in jax.tree.leaves(ckpt.params)} == {jnp.dtype(jnp.bfloat16)}
    out = jax.jit(ckpt.model.apply)(ckpt.params, want["tokens"], want["mask"])
    assert out.logits.dtype == jnp.bfloat16
    real = want["mask"]
    gap = (np.asarray(out.logits, np.float32) - want["logits"])[real]
    share = np.sqrt(np.mean(gap**2, axis=1) / np.mean(want["logits"][real] ** 2))
    assert np.median(share) < 0.05
    # Rounding may flip a close choice of experts, which then shows in a few tokens.
    assert np.sqrt(np.mean(share**2)) < (0.15 if ckpt.config.experts else 0.05)
