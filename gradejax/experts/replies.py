"""What comes back from an expert: a reply, or the fact that there is none and why.

A failed call is `Missing`, a type of its own without text, so that nothing downstream can grade
it: a busy expert is not a wrong one. A reply cut by the token limit is a `Reply` whose
`finish_reason` says "length"; no answer may be read from it.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Why there is no reply. "refused": the server's filter held it back; "budget": not asked, the limit
# on spending is reached; "failed" is any other exception of the provider.
MISSING_STATES = ("budget", "failed", "malformed", "rate_limited", "refused", "timeout", "too_long")
FINISH_REASONS = ("stop", "length")
MOST_TOKENS = 2**31 - 1  # of a call: what an array of counts holds; no call takes more
_BYTES_PER_TOKEN = 4  # a usual mean for English text, where the server does not count


def whole(count: Any) -> int | None:
    """A count of tokens as an integer, 3000.0 as 3000; None for what is no count, or an absurd one.
    """
    if isinstance(count, bool) or not isinstance(count, numbers.Real):
        return None
    return int(count) if 0 <= count <= MOST_TOKENS and count == int(count) else None


def counted(prompt: Any, output: Any) -> tuple[int, int] | None:
    """Both counts as integers; None when one is not legible, or the sum is absurd."""
    prompt, output = whole(prompt), whole(output)
    if prompt is None or output is None or prompt + output > MOST_TOKENS:
        return None
    return prompt, output


def estimate(n_bytes: int) -> int:
    """Tokens that so many bytes of text may be."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


class Usage(NamedTuple):
    """What a reply of an API took.

    output_tokens: reply and thinking. money: by the prices of the time. estimated: the server gave
    no count, a token is taken for four bytes. model: as the server names it. attempts: calls made.
    """

    output_tokens: int
    money: float
    estimated: bool
    model: str
    attempts: int


@dataclasses.dataclass(frozen=True, eq=False)
class Reply:
    """One finished call.

    Attributes:
      text: the reply, special tokens left out.
      tokens: [T] int32 sampled ids, the stop token included; never re-encoded from the text. [0]
        where an API does not show them.
      logprobs: [T] float32 log-probability of each id under the sampling distribution; [0]
        likewise.
      finish_reason: "stop" or "length".
      hidden: [E] pooled state of the last layer over the generated tokens; [0] for a reply of an
        API, until the embedding of its text is put there (`systems.asking`).
      prompt_tokens: length of the prompt.
      seconds: this call's share of its batch's wall time, when it was computed.
      usage: what an API says of the call; None for a local model.
    """

    text: str
    tokens: np.ndarray
    logprobs: np.ndarray
    finish_reason: str
    hidden: np.ndarray
    prompt_tokens: int
    seconds: float
    usage: Usage | None = None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def total_tokens(self) -> int:
        """Prompt and reply tokens: what the call cost.

        A record of an earlier version may hold an absurd count. It is taken as not given: the reply
        is estimated, and the prompt, which is not here, counted if its own number is legible.
        """
        said = len(self.tokens) if self.usage is None else self.usage.output_tokens
        used = counted(self.prompt_tokens, said)
        if used is None:
            text = estimate(len(self.text.encode("utf-8", "replace")))
            prompt = whole(self.prompt_tokens) or 0
            used = counted(prompt, text) or (0, text)
        return sum(used)

    @property
    def money(self) -> float:
        """What the call cost, in the currency of the prices; local models cost nothing."""
        return 0.0 if self.usage is None else self.usage.money

    def to_record(self) -> tuple[dict, dict[str, np.ndarray]]:
        """(meta, arrays) for the feature store.

        The parsed answer is left out on purpose: it depends on the grader's version, takes
        microseconds to read from the text, and a stored one would outlive a mended grader.
        """
        meta = {"text": self.text, "finish_reason": self.finish_reason,
                "prompt_tokens": self.prompt_tokens, "seconds": self.seconds}
        if self.usage is not None:
            meta["usage"] = self.usage._asdict()
        return meta, {"tokens": self.tokens, "logprobs": self.logprobs, "hidden": self.hidden}

    @classmethod
    def from_record(cls, meta: Mapping, arrays: Mapping[str, np.ndarray]) -> Reply:
        usage = meta.get("usage")
        return cls(**{**meta, "usage": None if usage is None else Usage(**usage)}, **arrays)


@dataclasses.dataclass(frozen=True)
class Missing:
    """No reply. `state` is one of MISSING_STATES; `message` is for the reader of the log."""

    state: str
    message: str

    def __post_init__(self):
        if self.state not in MISSING_STATES:
            raise ValueError(f"unknown missing state {self.state!r}; "
                             f"choose from {list(MISSING_STATES)}")


class ExpertCallError(RuntimeError):
    """A call failed; `state` says how (one of MISSING_STATES)."""

    def __init__(self, state: str, message: str):
        super().__init__(message)
        self.missing = Missing(state, message)


class PromptTooLong(ValueError):
    """The prompt and its reply do not fit the model's context. Prompts are never cut."""
