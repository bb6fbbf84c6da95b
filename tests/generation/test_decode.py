"""Replies: against torch's greedy texts, and whatever must not change them."""

import jax
import numpy as np
import pytest
from hf_folders import NAMES, checkpoint, expected, rows_of

from gradejax.generation import loop
from gradejax.generation.decode import generate
from gradejax.generation.prompts import left_pad
from gradejax.generation.sampling import GREEDY, Sampling

WARM = Sampling(temperature=1.0)


def run(name, prompts, **options):
    ckpt = checkpoint(name)
    options = {"max_new_tokens": 17, "stop_ids": (), "sampling": GREEDY, "batch_size": 5,
               "seeds": range(len(prompts))} | options  # fmt: skip
    return generate(ckpt.model, ckpt.params, prompts, **options)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_torchs(name):
    """Padded rows too, with the union of both configs' stop ids (B03)."""
    ckpt, want = checkpoint(name), expected(name)
    stops = ckpt.generation_stop_ids
    replies = run(name, rows_of(name), stop_ids=stops)
    # torch stopped at generation_config's ids alone; the free text stops at config.json's too.
    ends = [next((i for i, t in enumerate(row) if t in stops), 16) for row in want["free"]]
    right = [row[: end + 1].tolist() for row, end in zip(want["free"], ends, strict=True)]
    assert [g.tokens for g in replies] == right
    ends = [row[-1] in ckpt.generation_stop_ids for row in right]
    assert [g.finish_reason for g in replies] == ["stop" if e else "length" for e in ends]
    # B04, T9: the stop token is kept with its log-probability, and nothing after it.
    assert ends[0] and len(right[0]) < 17
    assert all(len(g.tokens) == len(g.logprobs) for g in replies)
    assert min(g.logprobs[-1] for g in replies) < 0


def test_without_stop_ids_all_rows_run_to_the_limit():
    free = run("llama", rows_of("llama"))
    assert [g.tokens for g in free] == expected("llama")["free"].tolist()
    assert {g.finish_reason for g in free} == {"length"}


def test_immediate_stop_is_length_one():
    first = run("llama", rows_of("llama")[:1])[0].tokens[0]
    reply = run("llama", rows_of("llama")[:1], stop_ids=(first,))[0]
    assert reply.tokens == [first] and reply.finish_reason == "stop"


def test_stop_token_in_the_last_place_is_a_stop():
    """The limit and the end meet: the reply is whole, not cut."""
    want = expected("phi3")["free"][0].tolist()
    n = next(i for i in range(3, 17) if want[i] not in want[:i]) + 1
    prompt = rows_of("phi3")[:1]
    stop = run("phi3", prompt, stop_ids=(want[n - 1],), max_new_tokens=n)[0]
    assert stop.tokens == want[:n] and stop.finish_reason == "stop"
    cut = run("phi3", prompt, stop_ids=(want[n - 1],), max_new_tokens=n - 1)[0]
    assert cut.tokens == want[: n - 1] and cut.finish_reason == "length"


@pytest.mark.parametrize("name, sizes", [("phi3", (2, 7)), ("qwen2", (7,))])
def test_a_row_does_not_depend_on_its_batch(name, sizes):
    """B01, T25: alone, in batches of 2 and 7, in other order, behind 3, 16 and more pads."""
    prompts = [*rows_of(name), rows_of(name)[0] * len(sizes), rows_of(name)[1][:3]]
    seeds = [11, 12, 13, 14, 15]
    options = {"sampling": WARM, "stop_ids": (7, 8)}
    solo = [run(name, [p], seeds=[s], batch_size=1, **options)[0]
            for p, s in zip(prompts, seeds, strict=True)]  # fmt: skip
    for size in sizes:
        batch = run(name, prompts[::-1], seeds=seeds[::-1], batch_size=size, **options)[::-1]
        for one, other in zip(solo, batch, strict=True):
            assert one.tokens == other.tokens and one.finish_reason == other.finish_reason
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)
            np.testing.assert_allclose(one.hidden, other.hidden, atol=2e-5)


def test_group_members_differ_and_seeds_repeat():
    """B09: eight answers to one prompt; one seed twice is the same answer."""
    prompt = rows_of("qwen2")[2]
    group = run("qwen2", [prompt] * 9, seeds=[*range(8), 0], sampling=WARM, max_new_tokens=6)
    texts = [tuple(g.tokens) for g in group]
    assert len(set(texts[:8])) > 4
    assert texts[8] == texts[0]
    again = run("qwen2", [prompt] * 8, seeds=range(8), sampling=WARM, max_new_tokens=6)
    assert [tuple(g.tokens) for g in again] == texts[:8]
    other = run("qwen2", [prompt] * 8, seeds=range(100, 108), sampling=WARM, max_new_tokens=6)
    assert [tuple(g.tokens) for g in other] != texts[:8]


def test_greedy_does_not_use_the_seed():
    prompt = rows_of("qwen2")[2]
    one, two = run("qwen2", [prompt] * 2, seeds=[1, 2])
    assert one.tokens == two.tokens and one.logprobs == two.logprobs


def test_top_1_and_tiny_temperature_are_greedy():
    want = [g.tokens for g in run("llama", rows_of("llama"))]
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(temperature=1e-4)):
        assert [g.tokens for g in run("llama", rows_of("llama"), sampling=sampling)] == want


def test_ids_from_vocab_on_are_never_drawn():
    """B10: embedding rows that the tokenizer cannot spell."""
    replies = run("llama", rows_of("llama"), sampling=Sampling(temperature=3.0), vocab=41)
    assert max(max(g.tokens) for g in replies) < 41
    free = run("llama", rows_of("llama"), sampling=Sampling(temperature=3.0))
    assert max(max(g.tokens) for g in free) >= 41


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
def test_pooled_hidden_states(pooling):
    """Of the reply's own tokens, the stop token included, from an uncached forward."""
    ckpt, prompts = checkpoint("phi3"), rows_of("phi3")
    replies = run("phi3", prompts, stop_ids=ckpt.generation_stop_ids, pooling=pooling)
    assert len({len(g.tokens) for g in replies}) > 1
    pool = {"mean": lambda h: h.mean(0), "last": lambda h: h[-1], "first": lambda h: h[0]}
    tokens, mask = left_pad([[*p, *g.tokens] for p, g in zip(prompts, replies, strict=True)], 3, 41)
    states = np.asarray(jax.jit(ckpt.model.apply)(ckpt.params, tokens, mask).hidden)
    for row, reply in zip(states, replies, strict=True):
        np.testing.assert_allclose(
            reply.hidden, pool[pooling](row[-len(reply.tokens) :]), atol=2e-5
        )


def test_the_context_is_checked_before_decoding(monkeypatch):
    """B08: past the cache's end the last slot would be overwritten without a word."""
    monkeypatch.setattr(loop, "read", lambda *a, **k: pytest.fail("reading began"))
    with pytest.raises(ValueError, match=r"prompt 1 has 240 tokens; with 17 new .* context of 256"):
        run("llama", [[5] * 239, [5] * 240])


def test_the_last_slot_of_the_context_is_used():
    """239 + 17 fit 256 exactly, and every token is the uncached model's own choice."""
    ckpt, prompt = checkpoint("llama"), (rows_of("llama")[0] * 11)[:239]
    reply = run("llama", [prompt], batch_size=1)[0]
    row = np.asarray([[*prompt, *reply.tokens]])
    logits = np.asarray(ckpt.model.apply(ckpt.params, row).logits)[0, 238:-1]
    assert len(reply.tokens) == 17 and reply.tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "prompts, options, words",
    [
        ([[4], [5]], {"seeds": [1]}, "2 prompts, 1 seeds"),
        ([[4]], {"pooling": "max"}, "'max'; choose from mean, last, first"),
        ([[4]], {"max_new_tokens": 0}, "max_new_tokens must be .* of at least 1, got 0"),
        ([[4]], {"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ([[4]], {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ([[4]], {"prefill_chunk": 0}, "prefill_chunk must be a whole number of at least 1, got 0"),
        ([[4]], {"soft_of": [0]}, "soft is not given"),
        ([[4]], {"soft": np.zeros((2, 36))}, r"width E = 36, got shape \(2, 36\)"),
        ([[4]], {"soft": np.zeros((1, 3, 35))}, r"width E = 36, got shape \(1, 3, 35\)"),
        ([[4]], {"soft": [[[0.0] * 36]]}, r"width E = 36, got \[\[\[0.0"),
        ([[4]], {"soft": np.zeros((2, 3, 36))}, r"one soft prefix a prompt \(1\), got 2"),
        ([[4]], {"soft": np.zeros((2, 3, 36)), "soft_of": [2]}, r"0 to 1, got \[2\]"),
        ([[4]], {"soft": np.zeros((2, 3, 36)), "soft_of": [0, 1]}, "1 entries of soft_of, got 2"),
        ([[4]], {"soft": np.zeros((2, 3, 36)), "soft_of": [0.5]}, "soft_of must be whole numbers"),
        ("4", {}, "expected prompts to be a list of lists of token ids, got '4'"),
        ([5], {}, "expected prompt 0 to be a list of token ids .*, got 5"),
        (["4"], {}, "expected prompt 0 to be a list of token ids .*, got '4'"),
        ([[4], [1.7, 2]], {}, "prompt 1 must be token ids .*, got 1.7"),  # once read as [1, 2]
        (np.asarray([[1.0, 2.0]]), {}, "prompt 0 must be token ids .*, got 1.0"),
        ([[True, 2]], {}, "prompt 0 must be token ids .*, got True"),
        ([[2**70]], {}, "the model knows 0 to"),
        *(([[4]], {"vocab": v}, f"vocab must be a whole number of at least 1, got {v}")
          for v in (0, -3, 1.5)),  # once 0 and -3 gave NaN
        *(([[4]], {"seeds": [s]}, "seeds must be whole numbers") for s in (None, -1, 2**40, 1.5)),
        ([[4]], {"seeds": 5}, "expected seeds to be a list of whole numbers, got 5"),
        *(([[4]], {"stop_ids": s}, "stop_ids") for s in (5, None, "7", ["7"], [True], [2**40])),
        *(([[4]], {"sampling": s}, "expected a Sampling") for s in (None, {"temperature": 1})),
        *(([[4]], {name: v}, f"{name} must be a whole number of at least 1, got {v}")
          for name in ("max_new_tokens", "samples", "batch_size", "prefill_chunk")
          for v in (None, 1.5, True)),
    ],
)
def test_bad_calls(prompts, options, words):
    with pytest.raises(ValueError, match=words):
        run("llama", prompts, **options)


def test_no_prompts_give_no_replies():
    assert run("llama", []) == []


def test_arrays_of_numpy_are_taken_as_lists_are():
    prompts = [row[:5] for row in rows_of("llama")[:2]]
    (want, *_), options = run("llama", prompts), {"seeds": np.arange(2, dtype=np.uint32)}
    options |= {"max_new_tokens": np.int64(17), "batch_size": np.int32(5), "stop_ids": np.zeros(0)}
    for given in (np.asarray(prompts), [np.asarray(p, np.uint8) for p in prompts]):
        assert run("llama", given, **options)[0].tokens == want.tokens


def test_counts_of_jax_and_iterators_are_taken():
    """A JAX scalar is no static argument, and an iterator that was looked at is empty."""
    prompts = [row[:5] for row in rows_of("llama")[:2]]
    one = jax.numpy.asarray
    options = {"soft": np.zeros((2, 1, checkpoint("llama").config.width), np.float32)}
    want = run("llama", prompts, samples=2, vocab=100, **options)
    got = run("llama", prompts, max_new_tokens=one(17), batch_size=one(5), samples=one(2),
              vocab=one(100), soft_of=iter([0, 1]), seeds=iter([0, 1]), **options)  # fmt: skip
    assert [g.tokens for g in got] == [g.tokens for g in want]


def test_the_loop_ends_with_its_last_row(monkeypatch):
    """Rows that have stopped cost nothing once all have: 17 tokens are allowed, 9 are drawn."""
    ends, plain = [], loop.run
    monkeypatch.setattr(loop, "run", lambda *a, **k: ends.append(plain(*a, **k)) or ends[-1])
    want = expected("phi3")["free"]
    stops = {int(row[n]) for row, n in zip(want[:2], (4, 8), strict=True)}
    replies = run("phi3", rows_of("phi3")[:2], stop_ids=stops, pooling=None)
    longest = max(len(g.tokens) for g in replies)
    assert longest <= 9 and {g.finish_reason for g in replies} == {"stop"}
    assert int(ends[0].place[0]) == longest - 1
    assert replies[0].hidden is None and replies[0].length == len(replies[0].tokens)
