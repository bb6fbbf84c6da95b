import numpy as np
import pytest

from gradejax.experts.replies import ExpertCallError, Missing, Reply, Usage


def test_a_reply_survives_the_store_unchanged():
    reply = Reply("x", np.int32([1, 2]), np.float32([-1, -2]), "length", np.float32([3]), 7, 0.5)
    meta, arrays = reply.to_record()
    assert "answer" not in meta  # depends on the grader: read from the text each time
    again = Reply.from_record(meta, arrays)
    for field in ("text", "finish_reason", "prompt_tokens", "seconds"):
        assert getattr(again, field) == getattr(reply, field)
    for field in ("tokens", "logprobs", "hidden"):
        np.testing.assert_array_equal(getattr(again, field), getattr(reply, field))
    assert again.truncated and again.total_tokens == 9


@pytest.mark.parametrize(("prompt", "output", "total"), [
    (5, 7, 12), (5, 7.0, 12), (5, 2**31 - 6, 2**31 - 1),
    # "four b" are two tokens, by its bytes.
    (5, 2**31 - 5, 7), (5, 3_000_000_000, 7), (5, 10**400, 7), (5, -3, 7), (5, float("nan"), 7),
    (5, None, 7), (3_000_000_000, 7, 2), (10**400, 10**400, 2), (2**31 - 1, 2**31, 2),
])
def test_an_absurd_count_is_taken_as_not_given(prompt, output, total):
    nothing = np.zeros(0, np.float32)
    reply = Reply("four b", nothing, nothing, "stop", nothing, prompt, 0.5,
                  Usage(output, 1.0, False, "m", 1))
    again = Reply.from_record(*reply.to_record())
    assert again.total_tokens == total and isinstance(again.total_tokens, int)
    assert np.int32(again.total_tokens) == total


def test_a_failed_call_has_a_state_and_nothing_that_can_be_graded():
    missing = ExpertCallError("timeout", "60 s").missing
    assert missing == Missing("timeout", "60 s")
    assert not any(hasattr(missing, f) for f in ("text", "tokens", "hidden"))
    with pytest.raises(ValueError, match="unknown missing state 'busy'; choose from .*timeout"):
        Missing("busy", "")
