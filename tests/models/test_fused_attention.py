"""The fused attention equals attention over parts, and is taken only where it serves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.attention import attend_masked
from gradejax.models.fused_attention import fused, serves

B, T, K, R, H, S = 2, 5, 2, 3, 8, 9


def case(dtype=jnp.float32, rows=B, length=T, head=H):
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape).astype(dtype)  # noqa: E731
    q, k, v = draw(0, B, length, K, R, head), draw(1, rows, K, head, S), draw(2, rows, K, S, head)
    mask = np.tril(np.ones((length, S), bool), S - length)[None, None].repeat(B, 0)
    mask[1, :, :, :6] = False  # left padding: the first queries of row 1 see nothing
    return q, k, v, jnp.asarray(mask)


@pytest.mark.parametrize("scale", [H**-0.5, 0.2])
def test_it_is_attention_over_one_part(scale):
    """Heads are split (query head 3k + r reads key head k), and what sees nothing is 0; tiled
    heads, or the mean of the values for a blind query, are far off."""
    q, k, v, mask = case()
    want = attend_masked(q, [(k, v)], [mask], scale=scale)
    got = fused(q, k, v, mask, scale=scale, implementation="xla")
    np.testing.assert_allclose(got, want, atol=1e-6)
    blind = ~np.asarray(mask.any(-1))[:, 0]
    assert blind.sum() == 2 and (np.asarray(got)[blind] == 0).all()
    tiled = fused(q.swapaxes(2, 3).reshape(q.shape), k, v, mask, scale=scale, implementation="xla")
    assert np.abs(tiled - want).max() > 0.1


def test_gradients_are_those_of_attention_over_one_part():
    q, k, v, mask = case()
    plain = lambda *a: jnp.sin(attend_masked(a[0], [a[1:]], [mask])).sum()  # noqa: E731
    ours = lambda *a: jnp.sin(fused(*a, mask, scale=H**-0.5, implementation="xla")).sum()  # noqa: E731
    for a, b in zip(*(jax.grad(f, (0, 1, 2))(q, k, v) for f in (ours, plain)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_it_serves_whole_prompts_in_half_precision_on_a_gpu():
    def asked(platform="gpu", dtype=jnp.bfloat16, rows=B, length=T, head=H, parts=1, **options):
        q, k, v, _ = case(dtype, rows, length, head)
        return serves(q, [(k, v)] * parts, platform=platform, **options)

    assert asked() and asked(dtype=jnp.float16)
    assert not asked(platform="cpu") and not asked(dtype=jnp.float32)
    assert not asked(rows=1) and not asked(parts=2) and not asked(length=1)
    assert not asked(head=136) and not asked(head=12)
    assert not asked(softcap=50.0) and not asked(sinks=jnp.zeros((K, R)))
