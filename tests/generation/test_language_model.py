"""load_lm: the engine behind texts; every number is the engine's own or torch's."""

import json
import pathlib
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradejax
from gradejax.generation import batches, loop
from gradejax.generation.messages import as_list
from gradejax.generation.score import lengths_as_drawn, score
from gradejax.models.lora import init_lora
from gradejax.models.peft import save_peft
from gradejax.models.quantize import tree_bytes

ROOT = pathlib.Path(__file__).parents[2]
HF = ROOT / "tests" / "fixtures" / "hf"
CHAT = [{"role": "user", "content": "Calculate 5 - 3 + 6."}]
TEXTS = ["1 + 2 =", "the sum of 12 and 30 is", "7"]


@pytest.fixture(scope="module")
def lm():
    return gradejax.load_lm(ROOT / "checkpoints" / "arithmetic")


def test_chats_and_texts_are_read_as_they_stand(lm):
    assert lm.encode(CHAT) == lm.tokenizer(lm.chat.render(CHAT), add_special_tokens=False)[
        "input_ids"
    ]
    assert lm.encode(TEXTS[0]) == lm.tokenizer(TEXTS[0])["input_ids"]
    assert as_list("a") == ["a"] and as_list(CHAT) == [CHAT] and as_list([CHAT, "a"]) == [CHAT, "a"]
    for bad in ([{"role": "user"}], 5, [], ["a", 3]):
        with pytest.raises(ValueError, match="expected a prompt"):
            lm.encode(bad)


def test_generate_and_stream_say_the_same(lm):
    (reply,) = lm.generate(CHAT, max_new_tokens=40)
    assert reply.finish_reason == "stop" and reply.text.splitlines()[-1].startswith("ANSWER:")
    assert "".join(lm.stream(CHAT, max_new_tokens=40)) == reply.text
    assert reply.prompt_tokens == len(lm.encode(CHAT))
    assert len(reply.tokens) == len(reply.logprobs) and max(reply.logprobs) <= 0


def test_a_prompt_draws_the_same_whatever_stands_beside_it(lm):
    together = lm.generate([CHAT, *TEXTS], temperature=1.0, seed=3, max_new_tokens=12)
    first = lm.generate([CHAT], temperature=1.0, seed=3, max_new_tokens=12)
    assert together[0].tokens == first[0].tokens
    groups = lm.generate([CHAT, CHAT], temperature=1.0, samples=3, max_new_tokens=12)
    assert [len(g) for g in groups] == [3, 3]
    assert len({tuple(r.tokens) for g in groups for r in g}) > 1


def test_scores_are_the_sampler_s(lm):
    (reply,) = lm.generate([CHAT], temperature=1.0, seed=1, max_new_tokens=24)
    (scored,) = lm.score([CHAT], [lm.tokenizer.decode(reply.tokens)])
    assert scored.tokens == reply.tokens
    np.testing.assert_allclose(scored.logprobs, reply.logprobs, atol=2e-5)
    assert scored.total == pytest.approx(sum(reply.logprobs), abs=1e-3)
    # in any batch
    more = lm.score([TEXTS[0], CHAT], [" 3", lm.tokenizer.decode(reply.tokens)], batch_size=2)
    assert more[1].total == pytest.approx(scored.total, abs=1e-4)


def test_hidden_states_against_the_engine(lm):
    ids = lm.encode(TEXTS[1])
    plain = np.asarray(lm.model.apply(lm.params, jnp.asarray([ids]), method="hidden"))[0]
    np.testing.assert_allclose(lm.hidden(TEXTS)[1], plain[-1], atol=1e-5)
    np.testing.assert_allclose(lm.hidden(TEXTS, pool="mean")[1], plain.mean(0), atol=1e-5)
    np.testing.assert_allclose(lm.hidden(TEXTS, pool="first")[1], plain[0], atol=1e-5)
    whole = lm.hidden(TEXTS, pool=None, batch_size=2)
    assert [len(h) for h in whole] == [len(lm.encode(t)) for t in TEXTS]
    np.testing.assert_allclose(whole[1], plain, atol=1e-5)
    below = lm.hidden(TEXTS[1], layer=0, pool=None)[0]
    np.testing.assert_allclose(below, np.asarray(lm.model.apply(
        lm.params, jnp.asarray([ids]), method="embed"))[0], atol=1e-6)  # fmt: skip
    with pytest.raises(ValueError, match="unknown pool 'max'; choose from last, first, mean, None"):
        lm.hidden(TEXTS, pool="max")


def test_logits_without_a_tokenizer_are_torch_s():
    bare = gradejax.load_lm(HF / "qwen2")
    with np.load(HF / "qwen2" / "expected.npz") as expected:
        got = np.asarray(bare.logits(expected["tokens"], expected["mask"]))
        real = expected["mask"].astype(bool)
        np.testing.assert_allclose(got[real], expected["logits"][real], atol=1e-4)
    with pytest.raises(ValueError, match="no tokenizer.*works without one"):
        bare.generate(["a"])
    with pytest.raises(ValueError, match=r"expected ids in 0 to 112, got 0 to 113"):
        bare.logits([[0, 113]])
    with pytest.raises(ValueError, match=r"expected input_ids \[B, T\] of integers"):
        bare.logits([1, 2])
    with pytest.raises(ValueError, match=r"expected attention_mask \(1, 2\), got \(1, 3\)"):
        bare.logits([[1, 2]], [[1, 1, 1]])


def test_a_bare_tokenizer_reads_texts_but_no_chats(lm, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(ROOT / "checkpoints" / "arithmetic" / name, tmp_path / name)
    bare = gradejax.load_lm(tmp_path)
    assert bare.hidden(["1 + 2"]).shape == (1, 128)
    with pytest.raises(ValueError, match="no chat template"):
        bare.generate([CHAT])
    plain = gradejax.load_lm(tmp_path, chat_template="plain")
    assert plain.chat.render(CHAT) == "Calculate 5 - 3 + 6.\n\n"


def test_too_long_or_empty_is_refused(lm):
    with pytest.raises(ValueError, match="row 1 has 600 tokens.*context of 384"):
        lm.hidden(["1", "7" * 600])
    with pytest.raises(ValueError, match="passes the model's context of 384"):
        lm.generate("7" * 380)
    with pytest.raises(ValueError, match="completion 0 is empty"):
        lm.score(["1"], [""])
    with pytest.raises(ValueError, match="expected one completion a prompt: 2 prompts, 1"):
        lm.score(["1", "2"], ["3"])
    assert lm.generate([]) == [] and lm.hidden([]).shape == (0, 128)


def test_int8_keeps_one_small_tree(lm):
    small = gradejax.load_lm(ROOT / "checkpoints" / "arithmetic", int8=True)
    assert tree_bytes(small.params) < 0.3 * tree_bytes(lm.params)
    a, b = (np.asarray(m.logits([lm.encode(CHAT)])) for m in (lm, small))
    assert 0 < np.linalg.norm(a - b) / np.linalg.norm(a) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_checkpoint_s_own_model_fits_weights_in_8_bits(dtype):
    """Its dtype is the norms', not int8, the first leaf's: states cut to integers are noise."""
    lm = gradejax.load_lm(ROOT / "checkpoints" / "arithmetic", int8=True, dtype=dtype)
    assert lm.checkpoint.model == lm.model and lm.model.dtype == jnp.dtype(dtype)
    ids = jnp.asarray([lm.encode(TEXTS[0])])
    logits = lm.checkpoint.model.apply(lm.params, ids).logits
    np.testing.assert_allclose(np.asarray(logits, "f4"), np.asarray(lm.logits(ids), "f4"),
                               atol=1e-4 if dtype == "float32" else 0.25)  # fmt: skip


def test_settings_that_are_known_to_change_nothing_may_be_named(tmp_path):
    """What the message about an unknown setting advises."""
    folder = shutil.copytree(ROOT / "checkpoints" / "arithmetic", tmp_path / "odd")
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"house_style": "blue"}))
    with pytest.raises(ValueError, match="house_style='blue'. If .* name them in ignore="):
        gradejax.load_lm(folder)
    assert gradejax.load_lm(folder, ignore=["house_style"]).checkpoint.config.width == 128
    for ignore, message in (("house_style", "must list names of settings, got 'house_style'"),
                            ([3], "must list names"), (["misspelt"], "config.json lacks: misspelt"),
                            (["rope_theta", "house_style"], "are: rope_theta")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            gradejax.load_lm(folder, ignore=ignore)


def test_score_is_the_engine_s(lm):
    head, tail = lm.encode(TEXTS[0]), lm.tokenizer(" 3")["input_ids"]
    tokens = jnp.asarray([[*head, *tail]])
    plain = score(lm.model, lm.params, tokens, jnp.ones(tokens.shape, bool), temperature=0.7)
    (got,) = lm.score(TEXTS[0], " 3", temperature=0.7)
    np.testing.assert_allclose(got.logprobs, np.asarray(plain)[0, len(head) :], atol=1e-5)


def test_ids_beyond_the_embedding_are_refused(tmp_path):
    """Read all the same they would be NaN: scores, states and, silently, whatever uses them."""
    folder = shutil.copytree(ROOT / "checkpoints" / "arithmetic", tmp_path / "grown")
    lm = gradejax.load_lm(folder)
    lm.tokenizer.add_tokens(["<new>"])
    for call in (lambda: lm.score(["a <new> b"], ["8"]), lambda: lm.score(["a"], ["<new>"]),
                 lambda: lm.hidden(["a <new> b"]), lambda: lm.generate("a <new> b")):  # fmt: skip
        with pytest.raises(ValueError, match="768"):
            call()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "auto", "float31", None, "int8"])
def test_an_unknown_dtype_lists_the_choices(dtype):
    with pytest.raises(ValueError, match="choose from float32, bfloat16, float16"):
        gradejax.load_lm(ROOT / "checkpoints" / "arithmetic", dtype=dtype)


OPTIONS = {
    "max_new_tokens": (None, "5", 2.5, True, 0),
    "temperature": (None, "1", np.nan, np.inf, -1, True),
    "top_k": (None, 1.5, -1, True),
    "top_p": (None, "1", 0, 1.5, True),
    "seed": (None, -1, 2**40, 1.5, "3", True),
    "samples": (None, 0, 1.5, True),
    "batch_size": (None, 0, 1.5, True),
    # beyond the embedding no token is drawn, and none ever stopped
    "stop_ids": (5, "12", ["</s>"], [2**40], [-1], [True], [1.5], [768], {"a": 1}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_another_kind_is_named(lm, name):
    for value in OPTIONS[name]:
        calls = [lambda: lm.generate("1", **{name: value})]  # noqa: B023
        if name not in ("samples", "batch_size", "stop_ids"):
            calls.append(lambda: lm.stream("1", **{name: value}))  # noqa: B023
        if name == "batch_size":
            calls += [lambda: lm.score("1", "2", batch_size=value),  # noqa: B023
                      lambda: lm.hidden([], batch_size=value)]  # noqa: B023
        if name == "temperature" and value != 0:
            calls.append(lambda: lm.score("1", "2", temperature=value))  # noqa: B023
        for call in calls:
            with pytest.raises(ValueError, match=name):
                call()


def test_numbers_and_arrays_of_numpy_are_taken(lm):
    want = lm.generate(TEXTS, max_new_tokens=3, temperature=1.0, top_k=4, seed=2, stop_ids=[2])
    got = lm.generate(
        np.asarray(TEXTS), max_new_tokens=np.int64(3), temperature=np.float32(1), top_k=np.int8(4),
        top_p=np.float64(1), seed=np.uint32(2), batch_size=np.int32(2), stop_ids=np.asarray([2]),
    )  # fmt: skip
    assert [g.tokens for g in got] == [w.tokens for w in want]
    assert lm.generate((t for t in TEXTS), max_new_tokens=1, stop_ids={2}, samples=np.int64(1))
    assert lm.decode(np.asarray(want[0].tokens)) == want[0].text


@pytest.mark.parametrize("prompt", [None, 5, 1.5, b"ab", {"a"}, [None], [5], [[]], [["a"]], [b"a"]])
def test_what_is_no_prompt_says_what_one_is(lm, prompt):
    for call in (lm.generate, lm.hidden, lambda p: lm.score(p, ["a"]),
                 lambda p: lm.stream(p)):  # fmt: skip
        with pytest.raises(ValueError, match="expected a (text|prompt)"):
            call(prompt)


def test_lone_surrogates_are_no_text(lm):
    """What a terminal of another encoding gives; a tokenizer would raise a TypeError."""
    for call in (lambda: lm.generate("a\udcff"), lambda: lm.score("a", "\udcff"),
                 lambda: lm.hidden([[{"role": "user", "content": "\udcff"}]])):  # fmt: skip
        with pytest.raises(ValueError, match=r"lone surrogate U\+DCFF"):
            call()


@pytest.mark.parametrize("completions", [None, 5, [None], [5], [b"a"], {"a": 1}])
def test_what_is_no_completion(lm, completions):
    with pytest.raises(ValueError, match="completion"):
        lm.score("a", completions)


@pytest.mark.parametrize("options", [{"layer": x} for x in (1.5, None, 5, -6, True, "1")]
                         + [{"pool": x} for x in (5, "max", [], np.zeros(2))])  # fmt: skip
def test_what_is_no_layer_or_pool(lm, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} "):
        lm.hidden([], **options)


@pytest.mark.parametrize("tokens", [None, "ab", [1.5], [-1], [True], 5])
def test_what_are_no_tokens(lm, tokens):
    with pytest.raises(ValueError, match="tokens"):
        lm.decode(tokens)


@pytest.mark.parametrize("options", [
    {"path_or_id": None}, {"path_or_id": 5}, {"path_or_id": ""}, {"path_or_id": b"a"},
    {"revision": 5}, {"revision": ""}, {"chat_template": 5}, {"chat_template": ""}, {"int8": "no"},
    {"int8": None}, {"adapter": 5}, {"adapter": ""},
])  # fmt: skip
def test_load_lm_names_an_argument_of_another_kind(options):
    path = {"path_or_id": ROOT / "checkpoints" / "arithmetic"}
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        gradejax.load_lm(**path | options)


@pytest.mark.parametrize("ids, mask, words", [
    (np.zeros((0, 3), int), None, r"at least one row of at least one; got int64 \(0, 3\)"),
    (np.zeros((2, 0), int), None, r"at least one row of at least one; got int64 \(2, 0\)"),
    ([[1, 2], [3]], None, "input_ids .* got rows of unequal lengths"),
    ([[1.0]], None, "of integers.* got float64"),
    ([[True]], None, "of integers.* got bool"),
    (None, None, "of integers.* got object"),
    ("ab", None, "of integers"),
    ([[1, 2], [1, 2]], [[1, 1], [0, 0]], "row 1 of the attention_mask has no real token"),
    ([[1, 2]], [[2, -1]], r"1 \(real\) and 0 \(padding\), got int64 with \[-1, 2\]"),
    ([[1, 2]], [[0.5, np.nan]], r"1 \(real\) and 0 \(padding\)"),
    ([[1, 2]], [["a", "b"]], r"1 \(real\) and 0 \(padding\)"),
    ([[1, 2]], [[1, 2], [3]], "attention_mask .* got rows of unequal lengths"),
])  # fmt: skip
def test_what_logits_refuse(lm, ids, mask, words):
    with pytest.raises(ValueError, match=words):
        lm.logits(ids, mask)


def test_masks_of_any_kind_of_0_and_1_are_one(lm):
    rows = [lm.logits([[0, 4, 5]], np.asarray([[0, 1, 1]], kind)) for kind in (bool, "i4", "f4")]
    for got in rows:
        np.testing.assert_array_equal(got[0, 1:], rows[0][0, 1:])
    np.testing.assert_allclose(rows[0][0, 1:], lm.logits([[4, 5]])[0], atol=1e-5)


def test_a_score_is_the_sampler_s_across_the_original_context(tmp_path):
    """T17: with dynamic scaling whole rows turn their keys by the final length, replies as they
    grow."""
    folder = shutil.copytree(ROOT / "checkpoints" / "arithmetic", tmp_path / "dynamic")
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 16,
               "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}  # fmt: skip
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config))
    lm, prompts, tail = gradejax.load_lm(folder), [CHAT, TEXTS[0]], "30 + 12 = 42, and 7 more is 49"
    for prompt, got in zip(prompts, lm.score(prompts, [tail, tail], batch_size=3), strict=True):
        row = jnp.asarray([[*lm.encode(prompt), *got.tokens]])
        mask = jnp.ones(row.shape, bool)
        lengths = lengths_as_drawn(jnp.asarray([len(lm.encode(prompt))]), mask)
        drawn, whole = (np.asarray(score(lm.model, lm.params, row, mask, lengths=n))[0]
                        for n in (lengths, None))  # fmt: skip
        np.testing.assert_allclose(got.logprobs, drawn[-len(got.tokens) :], atol=2e-5)
        assert np.abs(drawn - whole).max() > 0.01


def test_a_single_message_is_no_list_of_texts(lm):
    """Its keys would be two texts, "role" and "content"."""
    for call in (lm.generate, lm.hidden):
        with pytest.raises(ValueError, match="put it into a list"):
            call(CHAT[0])


@pytest.mark.parametrize("count, rows", [(1, 1), (3, 4), (5, 5)])
def test_few_prompts_cost_few_rows(lm, monkeypatch, count, rows):
    """One prompt in a batch of 64 took 40 times as long as by itself."""
    seen, plain = [], loop.start
    monkeypatch.setattr(loop, "start", lambda *a, **k: seen.append(len(a[5])) or plain(*a, **k))
    texts = [f"{i} + 2 =" for i in range(count)]
    lm.generate(texts, max_new_tokens=2, batch_size=5)
    lm.generate(texts, max_new_tokens=2, batch_size=15, samples=3)
    assert seen == [rows, 3 * rows]
    shapes, rows_of = [], batches.batches
    monkeypatch.setattr(batches, "batches", lambda *a: [
        shapes.append(len(b[1])) or b for b in rows_of(*a)])  # fmt: skip
    states = lm.hidden(texts, batch_size=5)
    scores = lm.score(texts, ["4"] * count, batch_size=5)
    assert shapes == [rows, rows] and len(states) == len(scores) == count


def test_an_adapter_of_another_base_is_warned_of(tmp_path):
    config = gradejax.load_lm(ROOT / "checkpoints" / "arithmetic").checkpoint.config
    lora = init_lora(config, jax.random.key(0), 2, targets=("q",))
    lora = lora.replace(tree=jax.tree.map(lambda x: x + 0.1, lora.tree))
    load = lambda: gradejax.load_lm(ROOT / "checkpoints" / "arithmetic", adapter=tmp_path)  # noqa: E731
    save_peft(tmp_path, config, lora, base="someone/logic")
    with pytest.warns(UserWarning, match="was made for 'someone/logic', by its name another model"):
        load()
    for base in (None, "gradejax/Arithmetic/", str(ROOT / "checkpoints" / "arithmetic")):
        save_peft(tmp_path, config, lora, base=base)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load()


def test_mistakes_are_told_what_to_do(lm, tmp_path):
    with pytest.raises(ValueError, match="int8=True keeps the weights in 8 bits"):
        gradejax.load_lm(HF / "llama", dtype="int8")
    with pytest.raises(ValueError, match="token ids are read by logits"):
        lm.generate([[1, 2, 3]])
    with pytest.raises(ValueError, match="one prompt is wanted here, not a list"):
        lm.stream([CHAT])
    with pytest.raises(ValueError, match="give the folder it lies in, '.*arithmetic'"):
        gradejax.load_lm(ROOT / "checkpoints" / "arithmetic" / "model.safetensors")
    shutil.copy(ROOT / "checkpoints" / "arithmetic" / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="is a pickle, .* safe_serialization=True"):
        gradejax.load_lm(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match="pointer of git-lfs"):
        gradejax.load_lm(tmp_path)
    for name, words in (("bert", "SentenceEncoder"), ("qwen_2", "did you mean 'qwen2'")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        with pytest.raises(ValueError, match=words):
            gradejax.load_lm(tmp_path)
