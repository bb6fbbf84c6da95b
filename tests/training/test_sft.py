"""Supervised training: packing changes no loss, every reply token is learned, resume is exact."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hf_folders import checkpoint, expected, rows_of

from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import SHARED_SEGMENT, Decoder
from gradejax.training import sft
from gradejax.training.sft import SFTConfig, batch_rows, common_prefix, pack, sft_loss, train_sft

RNG = np.random.default_rng(0)
SYSTEM = [7, 3, 11]
TAILS = [([20, 21], [30, 31, 2]), ([22], [33, 2]), ([20, 25, 26, 27], [2]), ([28, 29], [35] * 6)]
WITH_PREFIX = [(SYSTEM + p, r) for p, r in TAILS]
WITHOUT = [([50 + i, *p], r) for i, (p, r) in enumerate(TAILS)]
# One prompt is what all others begin with: its reply follows the shared tokens at once.
WHOLE_PROMPT = [(SYSTEM, [30, 2]), (SYSTEM + [40, 41], [31, 2]), (SYSTEM + [43], [32, 33, 2])]
SAME_PROMPT = [(SYSTEM, [30, 2]), (SYSTEM, [31, 32, 2])]


def plain_loss(name, samples):
    """Each sample alone, from the logits and the definition, in float64."""
    ckpt, total, count = checkpoint(name), 0.0, 0
    run = jax.jit(ckpt.model.apply)
    for prompt, reply in samples:
        row = np.zeros((1, 17), int)
        row[0, : len(prompt) + len(reply)] = [*prompt, *reply]
        logits = np.asarray(run(ckpt.params, row).logits[0], np.float64)
        for t in range(len(prompt), len(prompt) + len(reply)):
            before = logits[t - 1]
            total += np.log(np.exp(before - before.max()).sum()) + before.max() - before[row[0, t]]
            count += 1
    return total, count


@pytest.mark.parametrize("name", ["llama", "phi3"])
@pytest.mark.parametrize(
    "samples", [WITH_PREFIX, WITHOUT, WHOLE_PROMPT, SAME_PROMPT],
    ids=["prefix", "no_prefix", "a_prompt_is_the_prefix", "one_prompt"],
)  # fmt: skip
def test_packed_loss_is_the_sum_over_samples(name, samples):
    """B02: every reply token counts once, the first included, scored from the place before."""
    data = pack(samples, 17)
    assert data.tokens.shape[0] < len(samples)  # some rows hold several samples
    total, (count, _) = jax.jit(sft_loss, static_argnums=0)(
        checkpoint(name).model, checkpoint(name).params, jax.tree.map(jnp.asarray, data)
    )
    right, tokens = plain_loss(name, samples)
    assert int(count) == tokens == sum(len(r) for _, r in samples)
    np.testing.assert_allclose(total, right, rtol=1e-5)


def test_accuracy_counts_greedy_hits():
    """Replies that the model itself would give are all right, a wrong one is one less."""
    prompt, reply = rows_of("llama")[2], expected("llama")["free"][2].tolist()
    run = jax.jit(sft_loss, static_argnums=0)
    hits = []
    for end in (reply[12], (reply[12] + 1) % 113):
        data = pack([(prompt, [*reply[:12], end])], 23)
        ckpt = checkpoint("llama")
        hits.append(int(run(ckpt.model, ckpt.params, jax.tree.map(jnp.asarray, data))[1][1]))
    assert hits == [13, 12]


def test_layout_of_a_packed_row():
    data = pack(WITH_PREFIX[:2], 13)
    assert data.tokens.tolist() == [[7, 3, 11, 20, 21, 30, 31, 2, 22, 33, 2, 0, 0]]
    assert data.segments.tolist() == [[SHARED_SEGMENT] * 3 + [1] * 5 + [2] * 3 + [0, 0]]
    assert data.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 3, 4, 5, 0, 0]]
    assert np.flatnonzero(data.learn[0]).tolist() == [5, 6, 7, 9, 10]


def test_common_prefix_leaves_each_prompt_its_last_token():
    assert common_prefix(WITH_PREFIX) == SYSTEM
    assert common_prefix(WITHOUT) == []
    assert common_prefix(WHOLE_PROMPT) == SYSTEM[:2]
    assert common_prefix([([], [4]), ([5], [6])]) == []


def test_every_sample_stands_whole_in_one_row():
    rng = np.random.default_rng(1)
    draw = lambda low, high, n: rng.integers(low, high, n).tolist()  # noqa: E731
    samples = [
        (SYSTEM + draw(12, 50, rng.integers(1, 9)), draw(50, 113, rng.integers(1, 7)))
        for _ in range(101)
    ]
    data = pack(samples, 29)
    found = []
    for tokens, segments, learn in zip(data.tokens, data.segments, data.learn, strict=True):
        assert tokens[:3].tolist() == SYSTEM
        for s in range(1, segments.max() + 1):
            at = segments == s
            found.append((SYSTEM + tokens[at & ~learn].tolist(), tokens[at & learn].tolist()))
    assert sorted(found) == sorted(samples)
    filled = (data.segments != 0).mean()
    assert filled > 0.85


def test_a_sample_longer_than_a_row_is_named():
    with pytest.raises(ValueError, match="sample 3 has 11 tokens, more than a row's 10"):
        pack(WITH_PREFIX, 10)


def test_batches_are_a_function_of_seed_and_step():
    config = SFTConfig(rows=5, seed=3)
    epoch = np.concatenate([batch_rows(23, config, s) for s in range(4)])
    assert len(set(epoch.tolist())) == 20  # no row twice in an epoch
    np.testing.assert_array_equal(batch_rows(23, config, 6), batch_rows(23, config, 6))
    assert batch_rows(23, config, 0).tolist() != batch_rows(23, config, 4).tolist()
    other = dataclasses.replace(config, seed=4)
    assert batch_rows(23, config, 0).tolist() != batch_rows(23, other, 0).tolist()
    with pytest.raises(ValueError, match="4 packed rows are fewer than a batch of 5"):
        batch_rows(4, config, 0)


MODEL = Decoder(DecoderConfig(
    family="qwen2", vocab_size=61, width=12, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=6, mlp_width=17, max_positions=32, qkv_bias=True, tied=True,
))  # fmt: skip


def small_data():
    rng = np.random.default_rng(2)
    samples = [([1, *rng.integers(3, 60, 3).tolist()], [*rng.integers(3, 60, 2).tolist(), 2])
               for _ in range(40)]  # fmt: skip
    return pack(samples, 19)


def test_resume_is_exact(tmp_path, monkeypatch):
    """Killed after step 4 of 6 and started again: bit-equal to the unbroken run."""
    config = SFTConfig(steps=6, rows=3, length=19, warmup=2, optimizer="muon", seed=5)
    unbroken = train_sft(MODEL, small_data(), config, str(tmp_path / "a"), save_every=3)
    plain = batch_rows

    def killed(num_rows, config, step):
        if step == 4:
            raise KeyboardInterrupt
        return plain(num_rows, config, step)

    monkeypatch.setattr(sft, "batch_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        train_sft(MODEL, small_data(), config, str(tmp_path / "b"), save_every=3)
    steps = []
    monkeypatch.setattr(sft, "batch_rows", lambda *a: steps.append(a[2]) or plain(*a))
    resumed = train_sft(MODEL, small_data(), config, str(tmp_path / "b"), save_every=3)
    assert steps == [3, 4, 5]  # nothing skipped, nothing seen twice
    jax.tree.map(np.testing.assert_array_equal, resumed, unbroken)
    fresh = MODEL.init(jax.random.key(5), jnp.zeros((1, 2), jnp.int32))
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), unbroken, fresh)
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_learns(tmp_path, optimizer):
    """A reply that repeats the prompt's token: the loss falls well under log 7 = 1.9."""
    samples = [([1, 3 + i % 7], [3 + i % 7, 2]) for i in range(70)]
    seen = []
    config = SFTConfig(
        steps=150, rows=5, length=16, warmup=5, learning_rate=3e-2, optimizer=optimizer
    )
    train_sft(MODEL, pack(samples, 16), config, str(tmp_path), save_every=1000,
              on_step=lambda step, m: seen.append((step, m["loss"])))  # fmt: skip
    assert [s for s, _ in seen] == [50, 100, 150]
    assert seen[-1][1] < 0.1


def test_non_finite_loss_keeps_the_last_good_checkpoint(tmp_path):
    """Looked at before each save, not only at each log line."""
    config = SFTConfig(steps=9, rows=3, length=19, warmup=0, learning_rate=1e38, clip=1e30)
    with pytest.raises(FloatingPointError, match="newest good checkpoint is step"):
        train_sft(MODEL, small_data(), config, str(tmp_path), save_every=1)
    kept = sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit())
    assert kept and kept[-1] < 9


def test_unknown_optimizer():
    with pytest.raises(ValueError, match="'lion'; choose from 'adamw', 'muon'"):
        sft.make_optimizer(SFTConfig(optimizer="lion"))


def as_matrices(params):
    """Every kernel on its own and two-dimensional, [in, out]."""
    p = params["params"]["layers_0"]
    kernel = p["attn"]["qkv"]["kernel"]
    flat = lambda x: x.reshape(-1, kernel.shape[-1]).T  # noqa: E731
    return {
        "q": flat(kernel[:, :-2]), "k": flat(kernel[:, -2]), "v": flat(kernel[:, -1]),
        "o": p["attn"]["o"]["kernel"].reshape(kernel.shape[-1], -1).T,
        "gate": p["mlp"]["gate_up"]["kernel"][0].T, "up": p["mlp"]["gate_up"]["kernel"][1].T,
        "down": p["mlp"]["down"]["kernel"].T,
    }  # fmt: skip


def test_muon_sees_each_matrix_of_a_fused_kernel():
    """Two steps equal optax's Muon on q, k, v, o, gate, up and down as plain matrices; were the
    fused kernel one matrix, q and k would share their singular values."""
    config = SFTConfig(steps=9, warmup=0, optimizer="muon", clip=1e9)
    params = MODEL.init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))
    keys = iter(jax.random.split(jax.random.key(2), 99))
    grads = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), params)
    ours = sft.make_optimizer(config)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 0, 9, 1e-4)
    plain = optax.contrib.muon(schedule, weight_decay=config.weight_decay, consistent_rms=0.2)
    tree, before = as_matrices(params), params
    state, right = ours.init(params), plain.init(tree)
    for _ in range(2):
        updates, state = jax.jit(ours.update)(grads, state, params)
        want, right = jax.jit(plain.update)(as_matrices(grads), right, tree)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
                     as_matrices(updates), want)  # fmt: skip
        params, tree = optax.apply_updates(params, updates), optax.apply_updates(tree, want)
    fused = optax.contrib.muon(schedule, weight_decay=config.weight_decay, consistent_rms=0.2)
    whole = {"qkv": before["params"]["layers_0"]["attn"]["qkv"]["kernel"].reshape(-1, 12).T}
    pull = {"qkv": grads["params"]["layers_0"]["attn"]["qkv"]["kernel"].reshape(-1, 12).T}
    fault, _ = fused.update(pull, fused.init(whole), whole)
    first, _ = ours.update(grads, ours.init(before), before)
    got = first["params"]["layers_0"]["attn"]["qkv"]["kernel"].reshape(-1, 12).T
    assert np.abs(got - fault["qkv"]).max() > 0.1 * np.abs(got).max()


def test_splitting_is_undone():
    params = MODEL.init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))
    split = sft.split_fused(params)
    assert set(split["params"]["layers_0"]["attn"]["qkv"]) == {"q", "k", "v"}
    jax.tree.map(np.testing.assert_array_equal, sft.fuse_split(split), params)


def test_only_matrices_decay():
    """At gradient 0 kernels and the embedding shrink, biases and norms stay."""
    params = MODEL.init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))
    params = jax.tree.map(jnp.ones_like, params)
    rule = sft.make_optimizer(SFTConfig(warmup=0))
    updates, _ = rule.update(jax.tree.map(jnp.zeros_like, params), rule.init(params), params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        assert np.all(update < 0) == (path[-1].key in ("kernel", "embedding")), path
