"""What rows share is read once, stands once in memory, and changes no reply."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, expected, rows_of
from lora_rows import adapters

from gradejax.generation import loop
from gradejax.generation.decode import generate, stream
from gradejax.generation.prompts import left_pad, sample_seed
from gradejax.generation.sampling import GREEDY, Sampling
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder

WARM = Sampling(temperature=1.0)
SYSTEM = [3, 9, 27, 81, 19, 57, 59, 65, 83, 25, 75, 1, 3, 9, 27, 81, 19]


def run(name, prompts, **options):
    ckpt = checkpoint(name)
    options = {"max_new_tokens": 7, "stop_ids": (7, 8), "sampling": GREEDY, "batch_size": 4,
               "seeds": [11 + i for i in range(len(prompts))]} | options  # fmt: skip
    return generate(ckpt.model, ckpt.params, prompts, **options)


def same(one, other, atol=1e-5):
    """Tokens and ends are equal, log-probabilities and states within the tolerance."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.tokens == b.tokens and a.finish_reason == b.finish_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=atol)
        if a.hidden is not None:
            np.testing.assert_allclose(a.hidden, b.hidden, atol=2 * atol)


def behind_system(name):
    return [SYSTEM + row for row in rows_of(name)]


@pytest.mark.parametrize("batch_size", [12, 8, 3])
def test_samples_of_a_group_are_solo_replies(batch_size):
    """G = 5 in one call, in batches of 12 (2 prompts), 8 (1 prompt) and 3 (a group cut 3 + 2)."""
    prompts = rows_of("phi3")
    group = run("phi3", prompts, sampling=WARM, samples=5, batch_size=batch_size)
    seeds = [sample_seed(11 + p, g) for p in range(3) for g in range(5)]
    solo = run("phi3", [p for p in prompts for _ in range(5)], sampling=WARM, seeds=seeds,
               batch_size=15, share_prefix=False)  # fmt: skip
    same(group, solo)
    assert len({tuple(g.tokens) for g in group[:5]}) > 2  # B09: the group is not one text
    same(group[::5], run("phi3", prompts, sampling=WARM))  # sample 0 has the prompt's own seed


def test_a_common_beginning_is_read_once(monkeypatch):
    """Greedy text and log-probabilities are those of reading every prompt whole."""
    reads, plain = [], loop.read
    monkeypatch.setattr(
        loop, "read", lambda *a: reads.append((a[2].shape, len(a[4]))) or plain(*a)
    )
    for samples in (1, 2):
        reads.clear()
        prompts = behind_system("llama")
        shared = run("llama", prompts, samples=samples)
        # one row of the 17 common tokens; then the 23, 20 and 7 tokens of their own behind it
        assert reads[0] == ((1, 32), 0) and {r[1] for r in reads[1:]} == {1}
        assert max(shape[1] for shape, _ in reads) == 32
        reads.clear()
        same(shared, run("llama", prompts, samples=samples, share_prefix=False))
        assert max(shape[1] for shape, _ in reads) == 64


def test_a_group_s_keys_are_not_repeated(monkeypatch):
    """The loop holds the system prompt once, each prompt once, and a row's own new tokens."""
    seen, plain = [], loop.run
    monkeypatch.setattr(loop, "run", lambda *a, **k: seen.append((a, k)) or plain(*a, **k))
    run("llama", behind_system("llama")[:2], samples=2, batch_size=4)
    (_, _, state, parts, *_), _ = seen[0]
    assert [[k.shape[0], k.shape[3]] for k in (p.layers[0][0] for p in parts)] == [[1, 32], [2, 32]]
    assert state.cache.parts == () and {k.shape[0] for k, _ in state.cache.own} == {4}
    assert {(k.shape[3], v.shape[2]) for k, v in state.cache.own} == {(7, 7)}


def test_memory_of_a_step_does_not_hold_a_prompt_a_sample():
    """16 samples of one prompt of 4,096: its keys and values are 2.1 MB; repeated, 33.6 MB."""
    model = Decoder(DecoderConfig(
        family="llama", vocab_size=64, width=16, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, mlp_width=16, max_positions=8192,
    ))  # fmt: skip
    kind, size, batch = jax.ShapeDtypeStruct, 4096, 16
    params = jax.eval_shape(model.init, jax.random.key(0), kind((1, 2), jnp.int32))
    _, part = jax.eval_shape(lambda p, t, m: loop.read(model, p, t, m, (), None, None), params,
                             kind((1, size), jnp.int32), kind((1, size), bool))  # fmt: skip
    rules = loop.Rules(max_new=4, stop_ids=(), greedy=True)
    rows = (kind((batch,), bool), kind((batch,), jnp.float32), kind((batch,), jnp.uint32))
    state, parts = jax.eval_shape(
        lambda p, h, part, *r: loop.start(model, p, h, (), part, *r, rules=rules, samples=batch),
        params, kind((1, 16), jnp.float32), part, *rows,
    )  # fmt: skip
    used = loop.run.lower(model, params, state, parts, None, *rows[1:], 4,
                          rules=rules).compile().memory_analysis()  # fmt: skip
    held = sum(x.size * 4 for x in jax.tree.leaves(part.layers))
    assert held == 2 * 2 * 2 * 16 * size * 4
    assert used.argument_size_in_bytes < 2 * held and used.temp_size_in_bytes < 4 * held


@pytest.mark.parametrize("name, chunk", [("phi3", 8), ("qwen2", 5)])
def test_long_prompts_are_read_in_chunks(name, chunk):
    """Exact past the sliding window too, behind a common part, and with a soft prefix."""
    prompts = behind_system(name)
    soft = 0.3 * np.random.default_rng(0).normal(size=(3, 4, checkpoint(name).config.width))
    for options in ({}, {"samples": 2, "soft": soft.astype(np.float32)}):
        whole = run(name, prompts, **options)
        same(run(name, prompts, prefill_chunk=chunk, **options), whole)


def test_a_soft_prefix_counts_as_tokens():
    """Embeddings of the prompt's last tokens in their place give the prompt's own reply."""
    ckpt, prompts = checkpoint("llama"), rows_of("llama")
    table = np.asarray(ckpt.params["params"]["embedding"]["embedding"])
    soft = np.stack([table[p[-3:]] for p in prompts])
    cut = [p[:-3] for p in prompts]
    for options in ({}, {"samples": 2, "sampling": WARM}):
        want = run("llama", prompts, **options)
        same(run("llama", cut, soft=soft, **options), want)
        # the table's rows in another order, and which is whose
        same(run("llama", cut, soft=soft[::-1], soft_of=[2, 1, 0], **options), want)
    other = run("llama", cut, soft=soft + 0.5)
    assert [g.tokens for g in other] != [g.tokens for g in run("llama", prompts)]


@pytest.mark.parametrize("share", [True, False])
def test_adapters_of_one_batch_do_not_mix(share):
    """T16: rows of two adapters, of a mixture and of none, each as in a call of its own."""
    name = "qwen2"
    prompts = [SYSTEM + rows_of(name)[0], *behind_system(name)]
    weights = [[1, 0], [0, 1], [0, 1], [0, 0]] if share else [[1, 0], [0, 1], [0.5, 0.7], [0, 0]]
    lora = adapters(checkpoint(name).config, weights)
    for samples in (1, 2):
        mixed = run(name, prompts, lora=lora, samples=samples, share_prefix=share)
        for p in range(4):
            alone = lora.replace(weights=lora.weights[p : p + 1])
            solo = run(name, prompts[p : p + 1], lora=alone, seeds=[11 + p], batch_size=2,
                       samples=samples)  # fmt: skip
            same(mixed[p * samples : (p + 1) * samples], solo)
    base = run(name, prompts)
    assert mixed[-1].tokens == base[-1].tokens  # no weight is the frozen model
    assert [g.tokens for g in mixed[::2]] != [g.tokens for g in base]


def test_device_count_changes_no_reply():
    """Rows over four devices: the same tokens as on one."""
    ckpt, prompts = checkpoint("qwen2"), rows_of("qwen2") * 2
    want = run("qwen2", prompts, sampling=WARM, samples=2, batch_size=8)
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    layout = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = jax.device_put(ckpt.params, everywhere)
    got = generate(ckpt.model, params, prompts, max_new_tokens=7, stop_ids=(7, 8), sampling=WARM,
                   seeds=[11 + i for i in range(6)], samples=2, batch_size=8,
                   sharding=layout)  # fmt: skip
    same(got, want)


@pytest.mark.parametrize("every", [1, 3])
def test_a_stream_gives_generate_s_tokens(every, monkeypatch):
    ckpt, steps, plain = checkpoint("phi3"), [], loop.run
    monkeypatch.setattr(loop, "run", lambda *a, **k: steps.append(1) or plain(*a, **k))
    options = {"max_new_tokens": 8, "stop_ids": (7, 8), "sampling": WARM}
    for prompt, seed in zip(rows_of("phi3")[1:], (12, 13), strict=True):
        tokens = stream(ckpt.model, ckpt.params, prompt, seed=seed, every=every, **options)
        steps.clear()
        got = [next(tokens)]
        assert not steps  # the first token waits for no other
        got += tokens
        assert len(steps) == -(-(len(got) - 1) // every)
        want = run("phi3", [prompt], seeds=[seed], batch_size=1, **options)[0]
        assert got == want.tokens
    greedy = stream(ckpt.model, ckpt.params, rows_of("phi3")[0], max_new_tokens=17,
                    stop_ids=ckpt.generation_stop_ids, sampling=GREEDY)  # fmt: skip
    assert list(greedy) == [t for t in expected("phi3")["greedy"][0].tolist() if t >= 0]


def test_stream_refuses_before_it_begins():
    ckpt = checkpoint("phi3")
    options = {"max_new_tokens": 8, "stop_ids": (), "sampling": GREEDY}
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        stream(ckpt.model, ckpt.params, [], **options)
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        stream(ckpt.model, ckpt.params, [4], every=0, **options)
    for bad in ({"seed": 1.5}, {"stop_ids": 5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            stream(ckpt.model, ckpt.params, [4], **options | bad)


@pytest.mark.parametrize("system", [[], SYSTEM], ids=["apart", "system"])
def test_prompts_of_1_to_512_tokens_compile_few_shapes(system):
    """T30: at most 10, counted by the compiler's own cache; here 9, and 10 behind a system prompt.

    Rows of one length, and a long row beside a short one: without buckets 342 shapes.
    """
    width = 8 if system else 16  # shapes of this test alone
    model = Decoder(DecoderConfig(
        family="llama", vocab_size=101, width=width, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=4, mlp_width=8, max_positions=1024,
    ))  # fmt: skip
    params = model.init(jax.random.key(0), jnp.ones((1, 2), jnp.int32))
    before = loop.read._cache_size()
    for n in range(1, 513 - len(system), 3):
        for other in ([6], [6] * n):
            prompts = [[*system, *[5] * n], [*system, *other]]
            generate(model, params, prompts, max_new_tokens=2, stop_ids=(), sampling=GREEDY,
                     seeds=[0, 1], batch_size=2)  # fmt: skip
    assert loop.read._cache_size() - before == (10 if system else 9)


def test_a_long_prompt_leaves_no_trace_of_its_padding():
    """T11: a row fully padded in its first chunk, beside one that fills it."""
    rows = [rows_of("phi3")[0] * 3, rows_of("phi3")[2][:2]]
    tokens, mask = left_pad(rows, 2, 96)
    ckpt = checkpoint("phi3")
    whole, _ = loop.read(ckpt.model, ckpt.params, tokens, mask, (), None, None)
    parts, _ = loop.read_in_chunks(ckpt.model, ckpt.params, tokens, mask, (), None, None, chunk=32)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(parts, whole, atol=2e-5)
