"""What a language model takes and gives: texts or chats, replies and scores."""

import dataclasses
from collections.abc import Mapping, Sequence

from gradejax.generation.checks import listed

Message = Mapping[str, str]
Prompt = str | Sequence[Message]


@dataclasses.dataclass(frozen=True)
class Reply:
    """One reply.

    Attributes:
      text: without special tokens.
      tokens: ids, the stop token included.
      logprobs: of each under the distribution that drew it.
      finish_reason: "stop", or "length" when ``max_new_tokens`` cut it.
      prompt_tokens: length of the prompt.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    prompt_tokens: int


@dataclasses.dataclass(frozen=True)
class Score:
    """Log-probability of a completion.

    Attributes:
      total: sum over its tokens.
      tokens: ids of the completion.
      logprobs: of each token given all before it.
    """

    total: float
    tokens: list[int]
    logprobs: list[float]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single text or chat as a list of one.

    Raises:
      ValueError: neither, or a message outside of a list, whose keys would be taken for texts.
    """
    if isinstance(prompts, Mapping):
        raise ValueError(
            f"expected texts or lists of messages, got a single message {prompts!r:.100}; put it "
            "into a list"
        )
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and all(isinstance(p, Mapping) for p in prompts):
        return [prompts]
    return listed("a text, a chat or a list of them", prompts)
