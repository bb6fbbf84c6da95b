"""Completions of a group scored over one prompt: the plain values, gradients, and less work."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint, rows_of
from lora_rows import adapters

from gradejax.generation import score as score_lib
from gradejax.generation.decode import generate
from gradejax.generation.microbatch import value_and_grad_by_rows
from gradejax.generation.prompts import left_pad
from gradejax.generation.sampling import Sampling
from gradejax.generation.score import score
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.lora import Lora

# Under jit, as its users run it; and compiling operation by operation takes longer.
score_groups = jax.jit(
    score_lib.score_groups, static_argnums=0, static_argnames=("temperature", "vocab", "chunk")
)
P, G, C, M = 3, 2, 6, 4  # prompts, samples, longest completion, places of a soft prefix


def right_pad(rows, length):
    tokens, mask = left_pad(rows, len(rows), length)
    shift = [np.roll(x, len(r) - length) for x, r in zip(tokens, rows, strict=True)]
    return np.stack(shift), np.stack(
        [np.roll(x, len(r) - length) for x, r in zip(mask, rows, strict=True)])  # fmt: skip


def case(name, side="left"):
    """Prompts of 23, 20 and 7 tokens and completions of 1 to 6, one of them the whole length."""
    prompts = rows_of(name)
    pad = left_pad if side == "left" else lambda rows, _, n: right_pad(rows, n)
    rng = np.random.default_rng(5)
    lengths = np.asarray([[6, 1], [4, 3], [2, 5]])
    completions = rng.integers(0, 100, (P, G, C))
    mask = np.arange(C)[None, None, :] < lengths[:, :, None]
    return (*map(jnp.asarray, pad(prompts, P, 29)), jnp.asarray(completions), jnp.asarray(mask))


def plainly(model, params, prompts, completions, lengths, soft, lora, temperature, vocab):
    """Every whole row by itself: [prompt; soft; completion] through the model and its logits."""
    out = []
    for p, prompt in enumerate(prompts):
        for g in range(G):
            embed = lambda ids: model.apply(  # noqa: E731
                params, jnp.asarray(ids)[None], method="embed"
            )
            length = int(lengths[p, g])
            pieces = [embed(prompt), embed(completions[p, g, :length])]
            if soft is not None:
                pieces.insert(1, soft[p][None])
            one = None if lora is None else lora.replace(weights=lora.weights[p : p + 1])
            hidden = model.apply(params, None, None, embeds=jnp.concatenate(pieces, axis=1),
                                 lora=one, method="hidden")  # fmt: skip
            logits = model.apply(params, hidden, method="logits")[0, -length - 1 : -1]
            logits = jnp.where(jnp.arange(logits.shape[-1])[None] < (vocab or 10**9),
                               logits / temperature, -jnp.inf)  # fmt: skip
            table = jax.nn.log_softmax(logits)
            picked = table[np.arange(length), completions[p, g, :length]]
            out.append(jnp.pad(picked, (0, C - length)))
    return jnp.stack(out).reshape(P, G, C)


@pytest.mark.parametrize(
    "name, side, temperature, vocab, extras",
    [
        ("llama", "left", 1.0, None, False),
        ("phi3", "right", 0.7, None, True),
        ("qwen2", "left", 1.0, 105, True),
    ],
)
def test_values_and_gradients_are_those_of_whole_rows(name, side, temperature, vocab, extras):
    """Of all parameters, of adapters in mixtures and of the soft prefix (T10, T16, A05)."""
    ckpt = checkpoint(name)
    prompts, prompt_mask, completions, mask = case(name, side)
    ids, lengths = np.asarray(completions), np.asarray(mask).sum(2)
    weights = jnp.asarray([[1, 0], [0.3, 0.9], [0, 0]], jnp.float32)
    trained = {"params": ckpt.params}
    if extras:
        trained["tree"] = adapters(ckpt.config, weights).tree
        trained["soft"] = 0.3 * jax.random.normal(jax.random.key(3), (P, M, ckpt.config.width))
    weight = jnp.asarray(np.random.default_rng(6).normal(size=(P, G, C)), jnp.float32)

    def parts(trained):
        lora = Lora(trained["tree"], weights, jnp.asarray([0.5, 1.5])) if extras else None
        return trained["params"], trained.get("soft"), lora

    def shared(trained):
        params, soft, lora = parts(trained)
        out = score_groups(ckpt.model, params, prompts, prompt_mask, completions, mask,
                           temperature=temperature, vocab=vocab, lora=lora, soft=soft,
                           chunk=16)  # fmt: skip
        return (weight * jnp.where(mask, out, 0)).sum(), out

    def plain(trained):
        params, soft, lora = parts(trained)
        out = plainly(ckpt.model, params, rows_of(name), ids, lengths, soft, lora, temperature,
                      vocab)  # fmt: skip
        return (weight * jnp.where(mask, out, 0)).sum(), out

    (_, got), grad = jax.jit(jax.value_and_grad(shared, has_aux=True))(trained)
    (_, want), want_grad = jax.jit(jax.value_and_grad(plain, has_aux=True))(trained)
    np.testing.assert_allclose(np.where(mask, got, 0), np.where(mask, want, 0), atol=1e-5)
    assert (np.asarray(got)[~np.asarray(mask)] == 0).all()
    scale = max(np.abs(x).max() for x in jax.tree.leaves(want_grad))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(scale, 1)), grad, want_grad
    )
    if extras:  # adapters reach only rows that want them, and no gradient is idle
        assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grad["tree"]))
        assert (np.abs(grad["soft"]).max((1, 2)) > 0).all()


def test_a_group_of_one_is_a_whole_row():
    """Special case: ``score`` of prompt and completion side by side."""
    ckpt, (prompts, prompt_mask, completions, mask) = checkpoint("llama"), case("llama")
    row = jnp.concatenate([prompts, completions[:, 0]], axis=1)
    real = jnp.concatenate([prompt_mask, mask[:, 0]], axis=1)
    want = score(ckpt.model, ckpt.params, row, real)[:, -C:]
    got = score_groups(ckpt.model, ckpt.params, prompts, prompt_mask, completions[:, :1],
                       mask[:, :1])  # fmt: skip
    np.testing.assert_allclose(got[:, 0], want, atol=1e-5)
    one = score_groups(ckpt.model, ckpt.params, prompts, prompt_mask, completions[:, :, :1],
                       mask[:, :, :1])  # fmt: skip
    np.testing.assert_allclose(one[:, 0, 0], want[:, 0], atol=1e-5)  # a single place


def test_a_system_prompt_can_stand_before_all_groups():
    ckpt, (prompts, prompt_mask, completions, mask) = checkpoint("qwen2"), case("qwen2")
    system = jnp.asarray([[3, 9, 27, 81, 19, 57]])
    _, part = ckpt.model.apply(ckpt.params, system, method="prefill")
    got = score_groups(ckpt.model, ckpt.params, prompts, prompt_mask, completions, mask,
                       parts=(part,))  # fmt: skip
    rows = [[*system[0].tolist(), *row] for row in rows_of("qwen2")]
    want = score_groups(ckpt.model, ckpt.params, *map(jnp.asarray, left_pad(rows, 3, 29)),
                        completions, mask)  # fmt: skip
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("with_soft", [False, True], ids=["plain", "soft"])
def test_sampled_and_scored_log_probabilities_agree(with_soft):
    """T7, A05: on unchanged weights every ratio is 1 within 1e-5, adapters and soft prefix too."""
    name, samples = "phi3", 3
    ckpt, prompts = checkpoint(name), rows_of(name)
    lora = adapters(ckpt.config, [[1, 0], [0, 1], [0.4, 0.6]])
    soft = None
    if with_soft:
        soft = 0.3 * np.random.default_rng(1).normal(size=(2, M, ckpt.config.width))
        soft = soft.astype(np.float32)
    soft_of = None if soft is None else [1, 0, 1]
    replies = generate(
        ckpt.model, ckpt.params, prompts, max_new_tokens=9, stop_ids=(7,), seeds=[4, 5, 6],
        sampling=Sampling(), samples=samples, batch_size=9, lora=lora, soft=soft, soft_of=soft_of,
    )  # fmt: skip
    completions, mask = right_pad([g.tokens for g in replies], 9)
    got = score_groups(
        ckpt.model, ckpt.params, *map(jnp.asarray, left_pad(prompts, 3, 32)),
        jnp.asarray(completions).reshape(3, samples, 9), jnp.asarray(mask).reshape(3, samples, 9),
        lora=lora, soft=soft, soft_of=None if soft is None else jnp.asarray(soft_of),
    )  # fmt: skip
    drawn, _ = right_pad([[0.0] * len(g.tokens) for g in replies], 9)
    drawn = drawn.astype(np.float64)
    for row, g in zip(drawn, replies, strict=True):
        row[: len(g.tokens)] = g.logprobs
    np.testing.assert_allclose(np.asarray(got).reshape(9, 9), drawn, atol=1e-5)


@pytest.mark.parametrize("name, chunk", [("llama_dynamic", 512), ("llama_dynamic", 8),
                                         ("phi3_longrope", 8)])  # fmt: skip
def test_scalings_by_length_agree_in_sampling_and_scoring(name, chunk):
    """T17: prompts of 20 and 23 tokens past the original 16, whole and in chunks; behind a common
    beginning, which such rows cannot share. Read by the chunk's own length, keys would turn
    otherwise."""
    ckpt = checkpoint(name)
    rng = np.random.default_rng(2)
    begin = rng.integers(3, 100, 17).tolist()
    prompts = [begin + rng.integers(3, 100, n).tolist() for n in (3, 6)]
    limit = ckpt.config.max_positions
    if limit < 32:
        ckpt = dataclasses.replace(
            ckpt, config=dataclasses.replace(ckpt.config, max_positions=64)
        )
    replies = generate(ckpt.model, ckpt.params, prompts, max_new_tokens=6, stop_ids=(),
                       seeds=[1, 2], sampling=Sampling(), batch_size=2,
                       prefill_chunk=chunk)  # fmt: skip
    completions = jnp.asarray([g.tokens for g in replies])[:, None]
    got = score_groups(ckpt.model, ckpt.params, *map(jnp.asarray, left_pad(prompts, 2, 24)),
                       completions, jnp.ones((2, 1, 6), bool))  # fmt: skip
    np.testing.assert_allclose(got[:, 0], [g.logprobs for g in replies], atol=1e-5)


def test_a_prompt_s_work_is_done_once_a_group():
    """Eight completions of 8 to a prompt of 64: 64 + 8·7 places, where whole rows have 8·71."""
    model = Decoder(DecoderConfig(
        family="llama", vocab_size=32, width=64, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, mlp_width=256, max_positions=512,
    ))  # fmt: skip
    kind = jax.ShapeDtypeStruct
    params = jax.eval_shape(model.init, jax.random.key(0), kind((1, 2), jnp.int32))

    def flops(loss, *shapes):
        kinds = [kind(s, t) for s in shapes for t in (jnp.int32, jnp.bool_)]
        return jax.jit(jax.value_and_grad(loss)).lower(params, *kinds).compile().cost_analysis()[
            "flops"]  # fmt: skip

    shared = flops(lambda p, *a: score_groups(model, p, *a).sum(), (2, 64), (2, 8, 8))
    whole = flops(lambda p, *a: score(model, p, *a).sum(), (16, 72))
    assert 0.15 < shared / whole < 0.25  # 120 / 568 = .21; without sharing 1


def smollm(layers):
    return Decoder(DecoderConfig(
        family="llama", vocab_size=49_152, width=576, num_layers=layers, num_heads=9,
        num_kv_heads=3, head_dim=64, mlp_width=1536, max_positions=2048, tied=True,
    ))  # fmt: skip


def test_memory_and_work_of_a_135m_model_s_adapters():
    """Value and gradient of rank-8 adapters on [64, 288], one row at a time: under 1 GB, no more
    work than the plain form.

    Compiled with 1 and 3 of the 30 like layers, and carried on: memory is the head's and the
    loop's, and so much a layer. A loop's body is counted once by ``cost_analysis``, so the work is
    that of one row with the head in one chunk, against one row whose logits are all held.
    """
    kind = lambda shape, t=jnp.float32: jax.ShapeDtypeStruct(shape, t)  # noqa: E731
    sizes = {"q": (576, 576), "k": (576, 192), "v": (576, 192), "o": (576, 576),
             "gate": (576, 1536), "up": (576, 1536), "down": (1536, 576)}  # fmt: skip

    def whole(model, params, tokens, mask, lora, **_):
        logits = model.apply(params, tokens, mask, lora=lora).logits[:, :-1]
        table = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(table, tokens[:, 1:, None], axis=2)[..., 0]

    def compiled(layers, rows, logprobs, chunk=None):
        model = smollm(layers)
        params = jax.eval_shape(model.init, jax.random.key(0), kind((1, 2), jnp.int32))
        tree = {f"layers_{i}": {t: {"a": kind((1, a, 8)), "b": kind((1, 8, b))}
                                for t, (a, b) in sizes.items()} for i in range(layers)}  # fmt: skip
        batch = {"tokens": kind((rows, 288), jnp.int32), "mask": kind((rows, 288), jnp.bool_),
                 "advantage": kind((rows,))}  # fmt: skip

        def run(tree, batch, params):
            def loss(tree, batch):
                lora = Lora(tree, jnp.ones((len(batch["tokens"]), 1)), jnp.ones(1))
                out = logprobs(model, params, batch["tokens"], batch["mask"], lora=lora,
                               chunk=chunk)  # fmt: skip
                return (out.sum(1) * batch["advantage"]).sum(), None

            return value_and_grad_by_rows(loss, 1)(tree, batch)

        return jax.jit(run).lower(tree, batch, params).compile()

    temp = [compiled(n, 64, score).memory_analysis().temp_size_in_bytes for n in (1, 3)]
    assert temp[0] + (temp[1] - temp[0]) / 2 * 29 < 1e9
    ours, theirs = compiled(1, 1, score, chunk=512), compiled(1, 1, whole)
    assert 0.9 < ours.cost_analysis()["flops"] / theirs.cost_analysis()["flops"] < 1.1


def test_bad_shapes():
    ckpt, (prompts, prompt_mask, completions, mask) = checkpoint("llama"), case("llama")
    run = lambda *a, **k: score_groups(ckpt.model, ckpt.params, *a, **k)  # noqa: E731
    with pytest.raises(ValueError, match=r"P prompts \(2, 29\); got \(3, 2, 6\)"):
        run(prompts[:2], prompt_mask[:2], completions, mask)
    with pytest.raises(ValueError, match=r"one soft prefix a prompt \(3\), got 2"):
        run(prompts, prompt_mask, completions, mask, soft=jnp.zeros((2, 4, 32)))
    with pytest.raises(ValueError, match="temperature must be a number > 0"):
        run(prompts, prompt_mask, completions, mask, temperature=0.0)
