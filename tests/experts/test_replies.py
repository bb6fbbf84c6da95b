import numpy as np
import pytest

from gradejax.experts.replies import ExpertCallError, Missing, Reply


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


def test_a_failed_call_has_a_state_and_nothing_that_can_be_graded():
    missing = ExpertCallError("timeout", "60 s").missing
    assert missing == Missing("timeout", "60 s")
    assert not any(hasattr(missing, f) for f in ("text", "tokens", "hidden"))
    with pytest.raises(ValueError, match="unknown missing state 'busy'; choose from .*timeout"):
        Missing("busy", "")
