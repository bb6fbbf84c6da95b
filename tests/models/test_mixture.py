"""Experts against a loop over tokens; what a row's neighbours must not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.block import Adapters
from gradejax.models.config import DecoderConfig
from gradejax.models.mixture import Mixture

CONFIG = DecoderConfig(
    family="mixtral", vocab_size=7, width=6, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2,
    mlp_width=5, max_positions=9, experts=7, experts_per_token=3,
)  # fmt: skip
CLAMPED = {"swiglu_limit": 0.4, "mlp_bias": True}


def random_layer(**entries):
    config = DecoderConfig(**{**vars(CONFIG), **entries})
    layer, x = Mixture(config), np.random.default_rng(0).normal(size=(2, 4, 6)).astype("f4")
    params = jax.tree.map(jnp.array, layer.init(jax.random.key(1), x))
    keys = iter(jax.random.split(jax.random.key(2), 9))
    params = jax.tree.map(lambda w: jax.random.normal(next(keys), w.shape) * 0.7, params)
    return layer, params, x


def one_token(params, x, *, k=3, limit=None, alpha=1.702):
    """Softmax over the k best scores alone, in float64."""
    p = jax.tree.map(lambda w: np.asarray(w, np.float64), params["params"])
    bias = lambda m: p[m].get("bias", 0)  # noqa: E731
    scores = x @ p["router"]["kernel"].T + bias("router")
    best = np.argsort(-scores)[:k]
    shares = np.exp(scores[best]) / np.exp(scores[best]).sum()
    out = 0
    for share, e in zip(shares, best, strict=True):
        pick = lambda m, e=e: bias(m)[e] if "bias" in p[m] else 0  # noqa: E731
        gate, up = np.einsum("e,egf->gf", x, p["gate_up"]["kernel"][e]) + pick("gate_up")
        if limit is not None:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + 1
        steep = 1.0 if limit is None else alpha
        hidden = gate / (1 + np.exp(-steep * gate)) * up
        out += share * (hidden @ p["down"]["kernel"][e] + pick("down"))
    return out


@pytest.mark.parametrize("entries", [{}, CLAMPED], ids=["plain", "clamped"])
def test_against_a_loop(entries):
    """T21: shares are softmax after the choice; before it, they would not sum to 1."""
    layer, params, x = random_layer(**entries)
    out = jax.jit(layer.apply)(params, x)
    limit = entries.get("swiglu_limit")
    for b, t in np.ndindex(2, 4):
        np.testing.assert_allclose(out[b, t], one_token(params, x[b, t], limit=limit), atol=1e-5)
    if limit is not None:  # the clamp binds, on both sides of up
        loose = np.stack([one_token(params, row, limit=99.0) for row in x[0]])
        assert np.abs(out[0] - loose).max() > 0.1


def test_no_token_depends_on_its_neighbours():
    """No capacity: were tokens dropped when many choose one expert, equal rows would show it."""
    layer, params, x = random_layer()
    same = np.broadcast_to(x[:1, :1], (5, 9, 6))
    np.testing.assert_allclose(
        layer.apply(params, same), np.broadcast_to(layer.apply(params, x[:1, :1]), same.shape),
        atol=1e-6,
    )  # fmt: skip


def test_gradients_reach_the_chosen_experts_alone():
    layer, params, x = random_layer(experts_per_token=1)
    grads = jax.grad(lambda p: jnp.sum(layer.apply(p, x) ** 2))(params)["params"]
    scores = x.reshape(-1, 6) @ params["params"]["router"]["kernel"].T
    chosen = set(np.argmax(scores, axis=1).tolist())
    sizes = np.abs(grads["gate_up"]["kernel"]).max(axis=(1, 2, 3))
    assert {i for i, s in enumerate(sizes) if s > 0} == chosen and len(chosen) < 7


def test_adapters_on_experts_are_refused():
    layer, params, x = random_layer()
    lora = Adapters({"gate": {}, "q": {}}, None, None)
    with pytest.raises(ValueError, match=r"experts of a mixture \(gate\) are not .* q, k, v, o"):
        layer.apply(params, x, lora)
