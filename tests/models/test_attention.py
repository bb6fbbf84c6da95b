"""Attention against NumPy, row by row; and parts that rows share against copies of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.attention import (
    SHARED_SEGMENT,
    KeyValues,
    attend,
    attend_masked,
    causal_mask,
    token_positions,
)

RNG = np.random.default_rng(1)


def draw(*shape):
    return RNG.normal(size=shape).astype("f4")


def plain_attention(q, k, v, mask, *, scale=None, softcap=None, sinks=None):
    """Row by row in float64; q [B, T, K, R, H], k [B, K, H, S], v [B, K, S, H], mask [B, T, S]."""
    out = np.zeros(q.shape)
    for b, t, n, r in np.ndindex(q.shape[:4]):
        seen = np.flatnonzero(mask[b, t])
        s = q[b, t, n, r].astype(np.float64) @ k[b, n][:, seen]
        s = s * (q.shape[4] ** -0.5 if scale is None else scale)
        s = s if softcap is None else softcap * np.tanh(s / softcap)
        w = np.exp(s)
        if len(seen):
            total = w.sum() + (0 if sinks is None else np.exp(sinks[n, r]))
            out[b, t, n, r] = w @ v[b, n, seen] / total
    return out


OPTIONS = [{}, {"scale": 0.9}, {"softcap": 1.5}, {"sinks": draw(2, 3)},
           {"scale": 0.7, "softcap": 2.0, "sinks": draw(2, 3)}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
def test_against_numpy(options):
    """T20: six query heads on two key heads, split and not tiled. B10: a blind query gives 0."""
    q, k, v = draw(3, 5, 2, 3, 5), draw(3, 2, 5, 7), draw(3, 2, 7, 5)
    mask = RNG.random((3, 5, 7)) < 0.5
    mask[1, 2] = False
    run = lambda q: attend_masked(q, [(k, v)], [mask[:, None]], **options)  # noqa: E731
    out = np.asarray(jax.jit(run)(q))
    np.testing.assert_allclose(out, plain_attention(q, k, v, mask, **options), atol=1e-5)
    assert (out[1, 2] == 0).all()
    grad = jax.jit(jax.grad(lambda q: jnp.sum(run(q) ** 2)))(q)
    assert np.isfinite(grad).all() and (np.asarray(grad)[1, 2] == 0).all()


def test_sink_is_a_share_of_the_softmax():
    """T21: out · sigmoid(logsumexp - sink); left out, the row would sum to 1."""
    q, k = draw(1, 1, 1, 1, 3), draw(1, 1, 3, 4)
    v, mask = np.ones((1, 1, 4, 3), "f4"), np.ones((1, 1, 1, 4), bool)
    score = (q[0, 0, 0] @ k[0, 0])[0] / np.sqrt(3)
    out = attend_masked(q, [(k, v)], [mask], sinks=jnp.asarray([[0.3]]))
    share = 1 / (1 + np.exp(0.3 - np.log(np.exp(score).sum())))
    np.testing.assert_allclose(out, share, rtol=1e-5)
    assert share < 0.95


def test_softcap_comes_before_the_mask():
    """T18: capped after it, masked keys would stand at -cap and keep a share."""
    q, k = 9 * np.ones((1, 1, 1, 1, 1), "f4"), np.array([1.0, 1.0], "f4").reshape(1, 1, 1, 2)
    v = np.array([1.0, 5.0], "f4").reshape(1, 1, 2, 1)
    mask = np.array([True, False]).reshape(1, 1, 1, 2)
    assert float(attend_masked(q, [(k, v)], [mask], softcap=0.5).ravel()[0]) == 1.0


def parts_of_rows(batch, length=4):
    """A part for all, one for pairs and one a row, with pads; and the same copied for each row."""
    parts, copies, start = [], [], 0
    for rows, slots in ((1, 5), (batch // 2, 3), (batch, length)):
        real = RNG.random((rows, slots)) < 0.8
        positions = start + np.broadcast_to(np.arange(slots), (rows, slots))
        part = KeyValues(draw(rows, 2, 5, slots), draw(rows, 2, slots, 5), positions, real)
        parts.append(part)
        copies.append(jax.tree.map(lambda x, n=batch // rows: np.repeat(x, n, axis=0), part))
        start += slots
    whole = KeyValues(*(np.concatenate([getattr(c, f) for c in copies], axis=axis) for f, axis in
                        (("k", 3), ("v", 2), ("positions", 1), ("real", 1))))  # fmt: skip
    return parts, whole


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
def test_shared_parts_equal_copies(window, options):
    """Values and every gradient: one softmax over parts of 1, 3 and 6 rows."""
    parts, whole = parts_of_rows(6)
    q, positions = draw(6, 4, 2, 3, 5), np.broadcast_to(8 + np.arange(4), (6, 4))
    weight = draw(6, 4, 2, 3, 5)

    def loss(q, parts):
        return jnp.sum(weight * attend(q, parts, positions, window=window, **options))

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), allow_int=True))(q, parts)
    want, plain = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), allow_int=True))(q, [whole])
    mask = causal_mask(positions, whole.positions, whole.real, window=window)[:, 0]
    right = plain_attention(q, whole.k, whole.v, np.asarray(mask), **options)
    np.testing.assert_allclose(value, np.sum(weight * right), atol=1e-4)
    np.testing.assert_allclose(value, want, atol=1e-4)
    np.testing.assert_allclose(grads[0], plain[0], atol=1e-5)
    at = 0
    for part, got in zip(parts, grads[1], strict=True):
        rows, slots = part.real.shape
        for name, axis in (("k", 3), ("v", 2)):
            copied = np.take(getattr(plain[1][0], name), range(at, at + slots), axis=axis)
            summed = copied.reshape(rows, 6 // rows, *copied.shape[1:]).sum(1)
            np.testing.assert_allclose(getattr(got, name), summed, atol=1e-5)
        at += slots


def test_shared_keys_are_not_copied():
    """Of 64 rows on one part of 512 slots no array of 64 · 512 keys is made."""
    part = KeyValues(*(jax.ShapeDtypeStruct(s, jnp.float32)
                       for s in ((1, 2, 32, 512), (1, 2, 512, 32))),
                     jax.ShapeDtypeStruct((1, 512), jnp.int32),
                     jax.ShapeDtypeStruct((1, 512), bool))  # fmt: skip
    q = jax.ShapeDtypeStruct((64, 1, 2, 3, 32), jnp.float32)
    at = jax.ShapeDtypeStruct((64, 1), jnp.int32)
    compiled = jax.jit(lambda q, p, at: attend(q, [p], at)).lower(q, part, at).compile()
    copies = 64 * 2 * 32 * 512 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < copies / 3


def test_rows_must_divide():
    part, q = parts_of_rows(6)[0][1], draw(4, 1, 2, 3, 5)
    with pytest.raises(ValueError, match="4 rows cannot share a part of 3 rows"):
        attend(q, [part], np.zeros((4, 1), int))


def test_positions_come_from_each_rows_mask():
    """B01: pads get 0; positions shared by the batch would be 0..4 in every row."""
    mask = jnp.asarray([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], bool)
    assert token_positions(mask).tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]


def test_window_counts_positions_not_slots():
    """T11: window 3 after two pads: the token at position 4 sees 2, 3 and 4, the first itself."""
    positions = jnp.asarray([[0, 0, 0, 1, 2, 3, 4]])
    real = jnp.asarray([[0, 0, 1, 1, 1, 1, 1]], bool)
    mask = causal_mask(positions, positions, real, window=3)
    assert mask[0, 0, 6].tolist() == [False] * 4 + [True] * 3
    assert mask[0, 0, 2].tolist() == [False, False, True] + [False] * 4


def test_packed_segments_see_themselves_and_what_is_shared():
    segments = jnp.asarray([[SHARED_SEGMENT, 1, 1, 2]])
    positions = jnp.asarray([[0, 1, 2, 1]])
    mask = causal_mask(positions, positions, jnp.ones((1, 4), bool), segments=segments,
                       key_segments=segments)  # fmt: skip
    right = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
    assert mask[0, 0].astype(int).tolist() == right
