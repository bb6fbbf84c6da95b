"""load_lm: the engine behind texts; every number is the engine's own or torch's."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import gradejax
from gradejax.generation.language_model import as_list
from gradejax.generation.score import score
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
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        lm.hidden(["1"], batch_size=0)
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


def test_a_single_message_is_no_list_of_texts(lm):
    """Its keys would be two texts, "role" and "content"."""
    for call in (lm.generate, lm.hidden):
        with pytest.raises(ValueError, match="put it into a list"):
            call(CHAT[0])
