import dataclasses

import pytest
from fake_experts import make_provider, make_registry

from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import ModelPool
from gradejax.experts.replies import Missing, PromptTooLong


def test_a_reply_carries_the_sampled_ids_themselves():
    provider, _, _ = make_provider()
    spec = make_registry()["A2"]
    prompt = provider.encode(spec, "user:hi", "q1")
    (reply,) = provider.reply(spec, [prompt], [1234])
    # Ids as sampled (first and last of the prompt, the seed), never the text encoded again (B06).
    assert reply.tokens.tolist() == [ord("u"), ord("i"), 234]
    assert reply.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert len(reply.logprobs) == len(reply.tokens)
    assert reply.text == f"{ord('u')} {ord('i')} 234" and reply.finish_reason == "stop"
    assert reply.prompt_tokens == len("user:hi") and reply.total_tokens == 10
    assert reply.hidden.shape == (5,) and reply.hidden[0] == pytest.approx(7.234)
    assert reply.seconds > 0 and not reply.truncated


def test_prompts_are_never_cut():
    # F02: of lengths 100, 512, 513 and 700 under a limit of 512, the first two are kept.
    provider, _, _ = make_provider(context=512 + 8)
    spec = make_registry(max_new_tokens=8)["A1"]
    kept = []
    for i, length in enumerate([100, 512, 513, 700]):
        try:
            assert len(provider.encode(spec, "x" * length, f"q{i}")) == length
            kept.append(i)
        except PromptTooLong as error:
            said = str(error)
    assert kept == [0, 1]
    assert said == ("question 'q3', expert 'A1': the prompt has 700 tokens; with max_new_tokens=8 "
                    "that is more than the context of 520 tokens of 'math'")


def test_a_model_without_tokenizer_cannot_be_asked():
    _, engine, loader = make_provider()
    provider = LocalProvider(
        ModelPool(lambda spec: dataclasses.replace(loader(spec), tokenizer=None)), generate=engine)
    with pytest.raises(ValueError, match=r"expert 'A1' \(math\) has no tokenizer"):
        provider.describe(make_registry()["A1"])


def test_a_state_that_is_not_finite_is_missing_and_the_others_are_not():
    provider, engine, _ = make_provider()
    engine.spoil = "bad"
    spec = make_registry()["A1"]
    prompts = [provider.encode(spec, t, t) for t in ("a", "bad", "c")]
    replies = provider.reply(spec, prompts, [1, 2, 3])
    assert [isinstance(r, Missing) for r in replies] == [False, True, False]
    assert replies[1].state == "malformed" and not hasattr(replies[1], "text")


def test_an_engine_that_loses_a_row_is_an_error():
    provider, engine, _ = make_provider()
    engine.drop_one = True
    spec = make_registry()["A1"]
    with pytest.raises(RuntimeError, match="gave 1 replies to 2 prompts"):
        provider.reply(spec, [[1], [2]], [0, 0])


def test_what_a_key_knows_of_the_model():
    spec = make_registry()["A1"]
    one, two = (make_provider(weights=w)[0].describe(spec) for w in ("w0", "w1"))
    assert one.keys() == {"provider", "dtype", "weights", "text", "stop_ids"}
    assert one["weights"] != two["weights"]
