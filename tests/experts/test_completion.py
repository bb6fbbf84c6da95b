import json

import pytest
from odd_server import MODEL, completion

from gradejax.experts.completion import CallFailed, read_completion
from gradejax.experts.endpoint import Endpoint

ENDPOINT = Endpoint(base_url="http://127.0.0.1:1/v1")


def read(body, endpoint=ENDPOINT):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_completion(data, model=MODEL, endpoint=endpoint, prompt_bytes=41)


def failed(body):
    with pytest.raises(CallFailed) as got:
        read(body)
    return got.value


@pytest.mark.parametrize(("reason", "finish"), [
    ("stop", "stop"), ("eos", "stop"), ("eos_token", "stop"), ("end_turn", "stop"),
    ("stop_sequence", "stop"), ("length", "length"), ("max_tokens", "length"),
])
def test_a_reply_ends_by_itself_or_is_truncated(reason, finish):
    got = read(completion("4", finish=reason))
    assert (got.text, got.finish_reason, got.estimated) == ("4", finish, False)


@pytest.mark.parametrize(("reason", "state"), [
    ("content_filter", "refused"), ("tool_calls", "malformed"), ("function_call", "malformed"),
    (None, "malformed"), ("", "malformed"), (["stop"], "malformed"), (3, "malformed"),
])
def test_other_ends_are_no_reply_and_not_tried_again(reason, state):
    # A filtered text graded as an answer would be a wrong one of the model, which it never gave.
    error = failed(completion("4", finish=reason))
    assert (error.state, error.again, error.used) == (state, False, (10, 5))


def test_no_text_is_an_empty_reply():
    # F02: content null must not crash the reader, and is no answer.
    assert read(completion(None)).text == ""
    cut = read(completion(None, finish="length", reasoning="so maybe 42"))
    assert (cut.text, cut.finish_reason) == ("", "length")
    assert read(completion(None, refusal="I will not")).text == "I will not"
    assert read(completion([{"type": "text", "text": "a"}, {"text": "b"}])).text == "ab"


@pytest.mark.parametrize("body", [
    b"", b"{", b"<html>", b"\xff\xfe", b"[" * 100_000, b"[]", b"3", b"{}", {"choices": []},
    {"choices": None}, {"choices": ["x"]}, {"choices": {"0": 1}},
    completion("x") | {"choices": [{}]}, completion(5),
    completion("x") | {"error": {"message": "down"}, "choices": []},
])  # fmt: skip
def test_bodies_that_are_no_completion_may_be_tried_again(body):
    error = failed(body | {"model": MODEL} if isinstance(body, dict) else body)
    assert error.state in ("malformed", "failed") and error.again


def test_another_model_is_not_an_answer():
    error = failed(completion("4", model="another-model"))
    assert (error.state, error.again) == ("malformed", False)
    assert "asked for model 'odd-model', the reply is from 'another-model'" in str(error)
    assert failed({k: v for k, v in completion("4").items() if k != "model"}).state == "malformed"


@pytest.mark.parametrize(("usage", "counted"), [
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 5)),
    # F08: 1,800 thinking tokens are in the total alone; without them 200 would be paid for 2,000.
    ({"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 3000}, (1000, 2000)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": "many"}, (10, 5)),
    # Some servers write every number with a point; 1,800 thinking tokens were lost.
    ({"prompt_tokens": 1e3, "completion_tokens": 200.0, "total_tokens": 3000.0}, (1000, 2000)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15.5}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": True}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 2**31}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 10**400}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": float("inf")}, (10, 5)),
    ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 2**31 - 1}, (10, 2**31 - 11)),
    ({"prompt_tokens": 0, "completion_tokens": 2**31 - 1}, (0, 2**31 - 1)),
])
def test_tokens_are_counted_with_thinking(usage, counted):
    got = read(completion("four") | {"usage": usage})
    assert ((got.prompt_tokens, got.output_tokens), got.estimated) == (counted, False)


@pytest.mark.parametrize("usage", [
    None, [], {}, {"prompt_tokens": -1, "completion_tokens": 5},
    {"prompt_tokens": 10, "completion_tokens": None}, {"prompt_tokens": True,
                                                       "completion_tokens": 5},
    # An array of counts holds no more; the run would crash after all calls were paid.
    {"prompt_tokens": 5, "completion_tokens": 3_000_000_000},
    {"prompt_tokens": 2**31, "completion_tokens": 0},
    {"prompt_tokens": 1, "completion_tokens": 2**31 - 1},
    {"prompt_tokens": 5, "completion_tokens": 10**400},
    {"prompt_tokens": 5, "completion_tokens": 1e300},
    {"prompt_tokens": 5, "completion_tokens": 2.5}, {"prompt_tokens": "5", "completion_tokens": 2},
    {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
])
def test_without_a_count_tokens_are_estimated_and_said_to_be(usage):
    got = read(completion("seven b") | {"usage": usage})
    # ceil(41 / 4) and ceil(7 / 4); 0 would make such an expert free.
    assert (got.prompt_tokens, got.output_tokens, got.estimated) == (11, 2, True)


def test_a_number_of_thousands_of_digits_does_not_lose_the_reply():
    body = json.dumps(completion("four")).replace('"completion_tokens": 5',
                                                  '"completion_tokens": ' + "9" * 5000)
    got = read(body.encode())
    assert (got.text, got.estimated) == ("four", True)


@pytest.mark.parametrize("content", [
    [{"text": 5}], [{"text": "a"}, {"text": 5}], [{"text": 0}], [{"text": False}], [{"text": []}],
    [{"text": {"value": "a"}}], [5], [["a"]], 5, {"text": "a"}, True,
])
def test_content_that_is_no_text_is_malformed(content):
    error = failed(completion(content))
    assert (error.state, error.again, error.used) == ("malformed", True, (10, 5))
    assert "the content is a " in str(error)


def test_parts_of_a_content():
    parts = [{"type": "image"}, {"text": None}, None, {"text": "a"}, {"text": ""}, "b"]
    assert read(completion(parts)).text == "ab"


def test_half_a_surrogate_pair_becomes_a_mark():
    body = json.dumps(completion("a\ud83d b \U0001f600")).encode()
    assert read(body).text == "a\ufffd b \U0001f600"


def test_long_words_of_a_server_are_clipped():
    assert len(str(failed(b"<html>" + b"x" * 10_000))) < 400
    error = failed({"error": {"message": "y\n" * 5_000}})
    assert len(str(error)) < 400 and "\n" not in str(error)
