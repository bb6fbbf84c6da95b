"""Adapters by themselves: shapes, scales, mixtures, gradients, padding, stacking, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gradejax.models.config import DecoderConfig
from gradejax.models.lora import (
    TARGETS,
    Lora,
    init_lora,
    lora_delta,
    packed,
    scales,
    stack,
    target_sizes,
)
from gradejax.models.lora_merge import merge

CONFIG = DecoderConfig(
    family="llama", vocab_size=53, width=22, num_layers=3, num_heads=6, num_kv_heads=2,
    head_dim=10, mlp_width=29, max_positions=64,
)  # fmt: skip


def filled(lora, seed=5, size=0.3):
    """The adapters with B drawn, in the true rank's places only (those where A is not zero)."""
    keys = iter(jax.random.split(jax.random.key(seed), 200))

    def fill(entry):
        live = jnp.any(entry["a"] != 0, axis=1)[:, :, None]
        return entry | {"b": size * jax.random.normal(next(keys), entry["b"].shape) * live}

    return lora.replace(
        tree={k: {t: fill(e) for t, e in entries.items()} for k, entries in lora.tree.items()}
    )


def draw(shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def entry_of(ranks=(2, 5, 3), wide=7, out=11):
    """One entry with mixed ranks, and the plain (A, B) of each adapter."""
    plain = [(draw((wide, r), 10 + r), draw((r, out), 20 + r)) for r in ranks]
    top = max(ranks)
    a = jnp.stack([jnp.pad(a, ((0, 0), (0, top - a.shape[1]))) for a, _ in plain])
    b = jnp.stack([jnp.pad(b, ((0, top - b.shape[0]), (0, 0))) for _, b in plain])
    return {"a": a, "b": b}, plain


def test_scale_is_alpha_over_rank():
    """T14: alpha 16 at rank 8 is 2; alpha taken as the scale would be 8 times too strong."""
    lora = init_lora(CONFIG, jax.random.key(0), (8, 4), alpha=(16, 12.0))
    assert lora.scale.tolist() == [2.0, 3.0]
    stable = init_lora(CONFIG, jax.random.key(0), (16, 4), alpha=8, rank_stabilised=True)
    assert stable.scale.tolist() == [2.0, 4.0]
    assert init_lora(CONFIG, jax.random.key(0), (8, 4)).scale.tolist() == [1.0, 1.0]
    entry = {"a": jnp.ones((1, 3, 4)), "b": jnp.ones((1, 4, 1))}
    got = lora_delta(jnp.ones((1, 1, 3)), entry, jnp.ones((1, 1)), scales([4], [2.0]))
    assert got.tolist() == [[[6.0]]]  # 3 · 4 · 2/4; 24 without the division


def test_hand_gradients_at_the_start():
    """D09: B = 0 gives A no gradient and B one; with both 0 neither ever moves."""
    x, push = jnp.asarray([[[1.0, 2.0]]]), jnp.asarray([[[1.0, -1.0]]])
    entry = {"a": jnp.asarray([[[0.5], [1.0]]]), "b": jnp.zeros((1, 1, 2))}
    delta = lambda e: lora_delta(x, e, jnp.ones((1, 1)), jnp.asarray([2.0]))  # noqa: E731
    loss = lambda e: jnp.sum(push * delta(e))  # noqa: E731
    assert delta(entry).tolist() == [[[0.0, 0.0]]]
    grads = jax.grad(loss)(entry)
    assert grads["a"].tolist() == [[[0.0], [0.0]]]
    assert grads["b"].tolist() == [[[5.0, -5.0]]]
    dead = jax.grad(loss)(entry | {"a": jnp.zeros((1, 2, 1))})
    assert not any(np.any(g) for g in jax.tree.leaves(dead))


def test_rows_of_mixed_ranks_equal_their_solo_run():
    """T16: each row with its own adapter, rank and alpha/r, against x A B of unpadded factors."""
    entry, plain = entry_of()
    scale = scales([2, 5, 3], [1.0, 20.0, 6.0])
    x = draw((5, 4, 7), 1)
    weights = jax.nn.one_hot(jnp.asarray([2, 0, -1, 1, 0]), 3)
    got = lora_delta(x, entry, weights, scale)
    for row, i in enumerate([2, 0, -1, 1, 0]):
        want = 0 if i < 0 else float(scale[i]) * (x[row] @ plain[i][0] @ plain[i][1])
        np.testing.assert_allclose(got[row], np.broadcast_to(want, (4, 11)), atol=1e-5, rtol=1e-5)
    assert got[2].tolist() == np.zeros((4, 11)).tolist()
    # The likely bug divides by the padded rank: adapter 0 would have 1/5 in place of 1/2.
    wrong = lora_delta(x, entry, weights, scales([5, 5, 5], [1.0, 20.0, 6.0]))
    np.testing.assert_allclose(wrong[1] * 2.5, got[1], rtol=1e-5)


def test_mixture_is_the_weighted_sum_of_outputs():
    entry, plain = entry_of()
    scale, weights = scales([2, 5, 3], [4, 5, 6]), jnp.asarray([[0.2, -0.7, 0.0], [0.1, 0.3, 0.6]])
    x = draw((2, 3, 7), 2)
    want = sum(
        weights[:, i, None, None] * scale[i] * (x @ a @ b) for i, (a, b) in enumerate(plain)
    )
    np.testing.assert_allclose(lora_delta(x, entry, weights, scale), want, atol=2e-5)
    # Averaging A and B before the product is another function.
    mean = jnp.einsum("bn,ndr->bdr", weights, entry["a"]), jnp.einsum(
        "bn,nro->bro", weights * scale[None], entry["b"])  # fmt: skip
    assert np.abs(x @ mean[0] @ mean[1] - want).max() > 0.1


def test_gradients_reach_only_adapters_with_weight():
    entry, _ = entry_of()
    weights = jnp.asarray([[0.0, 0.5, 0.0], [0.0, 1.0, 0.0]])
    x = draw((2, 3, 7))
    loss = lambda e, w, s: jnp.sum(lora_delta(x, e, w, s) ** 2)  # noqa: E731
    scale = scales([2, 5, 3], [4, 5, 6])
    grads, by_weight, by_scale = jax.grad(loss, argnums=(0, 1, 2))(entry, weights, scale)
    for name in ("a", "b"):
        size = np.abs(grads[name]).max(axis=(1, 2))
        assert size[0] == 0 and size[2] == 0 and size[1] > 0.1
    assert (np.abs(by_weight) > 0.1).all()  # a gate learns what an adapter would add
    assert by_scale.tolist() == [0.0, 0.0, 0.0]


def test_padded_places_stay_zero_under_training():
    entry, _ = entry_of()
    weights = jnp.full((2, 3), 1 / 3)
    x = draw((2, 3, 7))
    loss = lambda e: jnp.sum(lora_delta(x, e, weights, jnp.ones(3)) ** 2)  # noqa: E731
    optimiser = optax.adamw(1e-2, weight_decay=0.1)
    state, start = optimiser.init(entry), entry
    for _ in range(3):
        updates, state = optimiser.update(jax.grad(loss)(entry), state, entry)
        entry = optax.apply_updates(entry, updates)
    for i, rank in enumerate((2, 5, 3)):
        assert not np.any(entry["a"][i, :, rank:]) and not np.any(entry["b"][i, rank:])
        assert (entry["a"][i, :, :rank] != start["a"][i, :, :rank]).all()


def test_packed_form_gives_the_same():
    lora = filled(init_lora(CONFIG, jax.random.key(1), (2, 5), targets=("down",), layers=[1]))
    x, weights = draw((2, 3, 29)), jnp.asarray([[1.0, 0.0], [0.4, 0.6]])
    flat = packed(lora)
    assert flat.entry(1)["down"]["a"].shape == (10, 29)
    again = packed(flat).entry(1)["down"]
    assert again["a"] is flat.entry(1)["down"]["a"]
    one, other = (lora_delta(x, v.entry(1)["down"], weights, v.scale) for v in (lora, flat))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("init, low, high", [("kaiming", 0.11, 0.14), ("normal", 0.017, 0.023)])
def test_start(init, low, high):
    """A as said (spread .123 of uniform in ±1/sqrt(22)), B and padding zero, draws distinct."""
    lora = init_lora(CONFIG, jax.random.key(3), (3, 7), init=init, targets="q v", last_n=2)
    assert sorted(lora.tree) == ["layers_1", "layers_2"]
    assert list(lora.tree["layers_1"]) == ["q", "v"]
    drawn = []
    for entries in lora.tree.values():
        for target, e in entries.items():
            assert e["a"].shape == (2, 22, 7)
            assert e["b"].shape == (2, 7, target_sizes(CONFIG)[target][1])
            assert not np.any(e["b"]) and not np.any(e["a"][0, :, 3:])
            drawn += [e["a"][0, :, :3].ravel(), e["a"][1].ravel()]
    assert low < np.std(np.concatenate(drawn)) < high
    assert len({float(d[0]) for d in drawn}) == len(drawn)


def test_an_adapter_draws_the_same_whatever_stands_beside_it():
    alone = init_lora(CONFIG, jax.random.key(3), 4, targets=("q",), layers=[2])
    more = init_lora(CONFIG, jax.random.key(3), (4, 6), targets=("q", "up"))
    np.testing.assert_array_equal(alone.tree["layers_2"]["q"]["a"][0],
                                  more.tree["layers_2"]["q"]["a"][0, :, :4])  # fmt: skip


def test_stack_pads_ranks_and_fills_what_is_missing():
    one = filled(init_lora(CONFIG, jax.random.key(1), 2, targets=("q", "o"), alpha=6))
    two = filled(init_lora(CONFIG, jax.random.key(2), (5, 3), targets=("q",), layers=[0]), 9)
    both = stack([one, two])
    assert both.count == 3 and both.scale.tolist() == [3.0, 1.0, 1.0]
    assert both.tree["layers_0"]["q"]["a"].shape == (3, 22, 5)
    assert both.tree["layers_2"]["q"]["a"].shape == (3, 22, 2)
    x = draw((1, 3, 22))
    for layer, target, which in ((0, "q", 0), (0, "q", 2), (2, "q", 0), (2, "q", 1)):
        e = both.tree[f"layers_{layer}"][target]
        got = lora_delta(x, e, jax.nn.one_hot(jnp.asarray([which]), 3), both.scale)
        source, at = (one, 0) if which == 0 else (two, which - 1)
        if f"layers_{layer}" not in source.tree:
            assert not np.any(got)
            continue
        e = source.tree[f"layers_{layer}"][target]
        alone = jax.nn.one_hot(jnp.asarray([at]), source.count)
        want = lora_delta(x, e, alone, source.scale)
        np.testing.assert_allclose(got, want, atol=1e-6)


def fused_tree(config=CONFIG):
    """A block's matrices in the decoder's layout, drawn."""
    groups, heads = config.num_kv_heads, config.num_heads // config.num_kv_heads
    width, head, wide = config.width, config.head_dim, config.mlp_width
    return {"params": {
        "embedding": {"embedding": draw((config.vocab_size, width), 1)},
        **{f"layers_{i}": {
            "attn": {"qkv": {"kernel": draw((groups, heads + 2, head, width), 10 + i)},
                     "o": {"kernel": draw((width, groups, heads, head), 20 + i)}},
            "mlp": {"gate_up": {"kernel": draw((2, wide, width), 30 + i)},
                    "down": {"kernel": draw((width, wide), 40 + i)}},
        } for i in range(config.num_layers)},
    }}  # fmt: skip


def test_merge_adds_each_target_in_its_place():
    """Heads of a query group follow Hugging Face's order, head = k·R + r."""
    lora = filled(init_lora(CONFIG, jax.random.key(1), (2, 4), alpha=8, last_n=2))
    params, weights = fused_tree(), jnp.asarray([0.5, -2.0])
    got = merge(params, lora, weights)
    before, after = params["params"], got["params"]
    assert after["embedding"]["embedding"] is before["embedding"]["embedding"]
    assert after["layers_0"] is before["layers_0"]
    gap = jax.tree.map(lambda x, y: np.asarray(x - y), after["layers_2"], before["layers_2"])
    qkv, gated = gap["attn"]["qkv"]["kernel"], gap["mlp"]["gate_up"]["kernel"]
    ours = {
        "q": qkv[:, :3].reshape(60, 22).T, "k": qkv[:, 3].reshape(20, 22).T,
        "v": qkv[:, 4].reshape(20, 22).T, "o": gap["attn"]["o"]["kernel"].reshape(22, 60).T,
        "gate": gated[0].T, "up": gated[1].T, "down": gap["mlp"]["down"]["kernel"].T,
    }  # fmt: skip
    for target in TARGETS:
        e = lora.tree["layers_2"][target]
        want = sum(weights[i] * lora.scale[i] * e["a"][i] @ e["b"][i] for i in range(2))
        assert np.abs(want).max() > 0.5
        np.testing.assert_allclose(ours[target], want, atol=1e-5, err_msg=target)


def test_training_adapters_leaves_the_base_out():
    """D07: base 1, adapter 1, gradients .2, sgd .1: the base stays 1 and the adapter is .98.

    Under ``optax.masked`` with the base in the tree it would go to 1.2; under adamw, to .999.
    """
    lora = Lora(tree={"layers_0": {"q": {"a": jnp.ones((1, 1, 1)), "b": jnp.ones((1, 1, 1))}}},
                weights=jnp.ones((1, 1)), scale=jnp.ones(1))  # fmt: skip
    grads = jax.tree.map(lambda x: jnp.full_like(x, 0.2), lora.tree)
    optimiser = optax.sgd(0.1)
    updates, state = optimiser.update(grads, optimiser.init(lora.tree))
    after = optax.apply_updates(lora.tree, updates)
    assert float(after["layers_0"]["q"]["a"][0, 0, 0]) == pytest.approx(0.98)
    assert not jax.tree.leaves(state)
    whole = {"base": jnp.ones(()), "adapter": jnp.ones(())}
    push = jax.tree.map(lambda x: x * 0.2, whole)
    masked = optax.masked(optax.sgd(0.1), {"base": False, "adapter": True})
    updates, _ = masked.update(push, masked.init(whole), whole)
    assert float(optax.apply_updates(whole, updates)["base"]) == pytest.approx(1.2)


def test_reference_copy_outlives_donation():
    """D08: the policy's buffers are donated; the reference keeps the start: 2, not 1.5."""
    entry = {"a": jnp.full((1, 1, 1), 2.0), "b": jnp.ones((1, 1, 1))}
    policy = Lora(tree={"layers_0": {"q": entry}}, weights=None, scale=jnp.ones(1))
    reference = policy.copy()
    step = jax.jit(lambda p: jax.tree.map(lambda x: x - 0.5, p), donate_argnums=0)
    after = step(policy.tree)
    assert float(after["layers_0"]["q"]["a"][0, 0, 0]) == 1.5
    assert float(reference.tree["layers_0"]["q"]["a"][0, 0, 0]) == 2.0


def test_rows_must_name_adapters():
    lora = init_lora(CONFIG, jax.random.key(0), (2, 2), targets=("q",))
    assert lora.for_rows([1, -1, 0]).weights.tolist() == [[0, 1], [0, 0], [1, 0]]
    entry = lora.entry(0)["q"]
    with pytest.raises(ValueError, match="does not say which rows"):
        lora_delta(jnp.ones((3, 2, 22)), entry, None, lora.scale)
    with pytest.raises(ValueError, match=r"\[rows, adapters\] = \(3, 2\), got \(2, 2\)"):
        lora_delta(jnp.ones((3, 2, 22)), entry, jnp.ones((2, 2)), lora.scale)


def test_misfits_are_named():
    lora = init_lora(CONFIG, jax.random.key(0), (2, 2), targets=("gate",))
    with pytest.raises(ValueError, match="one weight for each of 2 adapters, got shape \\(3,\\)"):
        merge(fused_tree(), lora, jnp.ones(3))
    tree = fused_tree()["params"]
    ungated = {"mlp": {"up": {"kernel": jnp.ones((22, 29))}}}
    lacking = tree | {"layers_1": tree["layers_1"] | ungated}
    with pytest.raises(ValueError, match="layers_1 has no matrix for LoRA target 'gate'"):
        merge({"params": lacking}, lora, jnp.ones(2))
    del tree["layers_2"]
    with pytest.raises(ValueError, match="no layers_2"):
        merge({"params": tree}, lora, jnp.ones(2))
    other = DecoderConfig(**{**vars(CONFIG), "mlp_width": 31})
    for target, said in (("gate", "22→31, the tree's matrix 22→29"),
                         ("down", "31→22, the tree's matrix 29→22")):  # fmt: skip
        wide = init_lora(other, jax.random.key(0), 2, targets=(target,))
        with pytest.raises(ValueError, match=f"layers_0/{target}: the adapter is {said}"):
            merge(fused_tree(), wide, jnp.ones(1))
    slim = DecoderConfig(**{**vars(CONFIG), "num_heads": 4})
    for target, said in (("q", "22→40, .* 22→60"), ("o", "40→22, .* 60→22")):
        wide = init_lora(slim, jax.random.key(0), 2, targets=(target,))
        with pytest.raises(ValueError, match=f"layers_0/{target}: the adapter is {said}"):
            merge(fused_tree(), wide, jnp.ones(1))
    for use in (lambda x: merge(fused_tree(), x, jnp.ones(2)), lambda x: stack([lora, x])):
        with pytest.raises(ValueError, match="packed for a loop"):
            use(packed(lora))
    with pytest.raises(ValueError, match="layers_0/gate is 22→29 in one and 22→31 in another"):
        stack([lora, init_lora(other, jax.random.key(0), 2, targets=("gate",))])
