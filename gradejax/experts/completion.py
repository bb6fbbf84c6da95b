"""Reading what an OpenAI-compatible server sent: a completion, or why there is none.

    finish_reason                                     becomes
    stop, eos, eos_token, end_turn, stop_sequence     a reply
    length, max_tokens                                a reply that is truncated; no answer is read
    content_filter                                    missing "refused": the server held back what
                                                      the model said, so nothing is known of it
    anything else, or none                            missing "malformed"

A reply without text that ended by itself (all tokens went to thinking) is an empty reply: the model
was asked and gave no answer. So is a model's own refusal, whose words are the text.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from gradejax.experts.endpoint import Endpoint
from gradejax.experts.replies import counted, estimate, whole

STOP = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
LENGTH = frozenset({"length", "max_tokens"})
_SHOWN = 300  # characters of a server's words in a message


class CallFailed(Exception):
    """One try gave no reply.

    Attributes:
      state: as in `replies.Missing`.
      again: whether another try may help.
      closed: the server will not answer any other question either.
      wait: seconds the server asks to wait, None when it does not say.
      billed: the tokens may have been charged, unless `used` tells how many.
      used: (prompt, output) tokens where they are known.
      message: the whole of it; as a text the failure is clipped. Take the key out of the whole: a
        part of a key at the end of a clipped one would not be found.
    """

    def __init__(self, state: str, message: str, *, again: bool, closed: bool = False,
                 wait: float | None = None, billed: bool = True,
                 used: tuple[int, int] | None = None):
        super().__init__(message)
        self.message = message
        self.state, self.again, self.closed = state, again, closed
        self.wait, self.billed, self.used = wait, billed, used

    def __str__(self) -> str:
        return clip(self.message)


class Completion(NamedTuple):
    """A reply as the server gave it; `output_tokens` with thinking, `estimated` as in `Usage`."""

    text: str
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    estimated: bool
    model: str


def clip(text: str) -> str:
    """Text in one line of a length that a log bears."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " ..."


def read_completion(body: bytes, *, model: str, endpoint: Endpoint, prompt_bytes: int
                    ) -> Completion:
    """Read the body of a response with status 200.

    Args:
      body: at most `endpoint.max_reply_bytes`.
      model: the name that was asked for.
      endpoint: says which names of models are accepted.
      prompt_bytes: for an estimate where the server counts no tokens.

    Raises: CallFailed for everything that is not a finished reply of that model.
    """
    try:
        data = json.loads(body.decode("utf-8"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        # Whole: it is clipped after the key was taken out.
        text = body.decode("utf-8", "replace")
        raise CallFailed("malformed", f"the body is not JSON ({type(error).__name__}): {text!r}",
                         again=True) from None
    if not isinstance(data, dict):
        raise CallFailed("malformed", f"the body is a {type(data).__name__}, not an object",
                         again=True)
    used = _usage(data.get("usage"))
    if data.get("error") is not None and not data.get("choices"):
        # Some gateways report the failure of the server behind them with status 200.
        raise CallFailed("failed", f"the server reports an error: {data['error']}", again=True,
                         used=used)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CallFailed("malformed", f"no choices in the reply: {choices!r}", again=True,
                         used=used)
    name = data.get("model")
    if not isinstance(name, str) or not endpoint.accepts(model, name):
        raise CallFailed("malformed", f"asked for model {model!r}, the reply is from {name!r} (set "
                         "api.reply_model if that is right)", again=False, used=used)
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise CallFailed("malformed", f"no message in the reply: {message!r}", again=True,
                         used=used)
    finish = _finish(choices[0].get("finish_reason"), used)
    text = _text(message, used)
    estimated = used is None
    if used is None:
        used = (estimate(prompt_bytes), estimate(len(text.encode("utf-8"))))
    return Completion(text, finish, *used, estimated, name)


def _finish(reason: Any, used: tuple[int, int] | None) -> str:
    reason = reason if isinstance(reason, str) else repr(reason)
    if reason in STOP:
        return "stop"
    if reason in LENGTH:
        return "length"
    if reason == "content_filter":
        raise CallFailed("refused", "the server's content filter held the reply back",
                         again=False, used=used)
    raise CallFailed("malformed", f"unknown finish_reason {reason!r}; expected one of "
                     f"{sorted(STOP | LENGTH)} or content_filter", again=False, used=used)


def _text(message: dict, used: tuple[int, int] | None) -> str:
    text = message.get("content")
    if text is None:
        text = message.get("refusal") or ""
    if isinstance(text, list):
        parts = [p.get("text") if isinstance(p, dict) else p for p in text]
        parts = ["" if p is None else p for p in parts]  # a part that is no text, as an image
        odd = next((p for p in parts if not isinstance(p, str)), None)
        text = odd if odd is not None else "".join(parts)
    if not isinstance(text, str):
        raise CallFailed("malformed", f"the content is a {type(text).__name__}, not text",
                         again=True, used=used)
    # JSON can carry half of a surrogate pair; tokenizers and files cannot.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _usage(usage: Any) -> tuple[int, int] | None:
    """(prompt, output) tokens, None when the server does not count them legibly."""
    if not isinstance(usage, dict):
        return None
    used = counted(usage.get("prompt_tokens"), usage.get("completion_tokens"))
    total = whole(usage.get("total_tokens"))
    if used is None or total is None:
        return used
    # What the total has beyond both is thinking, paid as output.
    return used[0], max(used[1], total - used[0])


def _integer(digits: str) -> int | float:
    # Python refuses to read thousands of digits, and the reply would be lost with the number.
    return int(digits) if len(digits) < 100 else math.inf
