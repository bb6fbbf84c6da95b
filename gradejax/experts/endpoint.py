"""Where an expert behind an API is reached, how patiently, and what its tokens cost.

The key is never part of it: `key_variable` names the environment variable that holds the key, so
that specs can be printed, stored in config.json and hashed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from typing import Any
from urllib.parse import urlsplit

TOKEN_FIELDS = ("max_tokens", "max_completion_tokens")
ANY_MODEL = "*"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
_KEY = re.compile(r"[!-~]+")
_POSITIVE = ("connect_timeout", "read_timeout", "deadline", "backoff_cap")
_NOT_NEGATIVE = ("backoff_base", "input_price", "output_price")
_COUNTS = ("concurrency", "attempts", "give_up_after", "max_reply_bytes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server, as one seat uses it.

    Attributes:
      base_url: up to and with the version, "http://127.0.0.1:8000/v1"; without user, password or
        query, where keys are sometimes put.
      key_variable: name of the environment variable with the key; "" for a server without keys.
      concurrency: calls under way at once; seats with equal endpoints share the limit.
      connect_timeout: seconds until a connection stands.
      read_timeout: longest silence of the server, in seconds, while a reply is awaited.
      deadline: seconds for one question, waits and retries included. A server that drips a byte a
        second is never silent; only this ends it.
      attempts: calls made for one question at most, the first included.
      give_up_after: so many questions one after another without a reply, and the rest is not asked.
      backoff_base, backoff_cap: seconds; see `retry.backoff_bound`.
      input_price, output_price: money for a million tokens, in whatever currency; thinking tokens
        cost as output.
      active_params: parameters that the model evaluates for a token, as its maker declares; None
        is unknown, which is said aloud and counted as 0.
      token_field: how the server calls the limit of the reply, one of TOKEN_FIELDS.
      reply_model: name that replies must carry; "" for the spec's model, also with a version added
        ("m" is answered as "m-2026-01-01", "m@main"); "*" for any.
      max_reply_bytes: a longer body is not read to its end.

    Raises: ValueError naming the field, what it got (never for `key_variable`, which may be the key
      itself by mistake) and what it expects.
    """

    base_url: str
    key_variable: str = ""
    concurrency: int = 8
    connect_timeout: float = 10.0
    read_timeout: float = 120.0
    deadline: float = 600.0
    attempts: int = 5
    give_up_after: int = 20
    backoff_base: float = 1.0
    backoff_cap: float = 30.0
    input_price: float = 0.0
    output_price: float = 0.0
    active_params: int | None = None
    token_field: str = "max_tokens"
    reply_model: str = ""
    max_reply_bytes: int = 1_000_000

    def __post_init__(self):
        self._check_url()
        if not isinstance(self.key_variable, str) or (
                self.key_variable and not _VARIABLE.fullmatch(self.key_variable)):
            raise ValueError("api.key_variable must be the name of an environment variable "
                             "(capital letters, digits and _) that holds the key, or '' for none; "
                             "got something else, not shown here: it may be the key itself")
        for field in _COUNTS:
            _number(field, getattr(self, field), int, 1)
        for field in (*_POSITIVE, *_NOT_NEGATIVE):
            _number(field, getattr(self, field), (int, float), 0, above=field in _POSITIVE)
        if self.active_params is not None:
            _number("active_params", self.active_params, int, 1)
        if self.token_field not in TOKEN_FIELDS:
            raise ValueError(f"unknown api.token_field {self.token_field!r}; "
                             f"choose from {list(TOKEN_FIELDS)}")
        if not isinstance(self.reply_model, str):
            raise ValueError(f"api.reply_model must be a name, '' or '*', got "
                             f"{self.reply_model!r}")

    def _check_url(self):
        what = "api.base_url must be an http or https address such as http://127.0.0.1:8000/v1"
        if not isinstance(self.base_url, str):
            raise ValueError(f"{what}, got {self.base_url!r}")
        try:
            parts = urlsplit(self.base_url)
        except ValueError:  # brackets that are no IPv6 address
            raise ValueError(f"{what}; what it got is no address (not shown: it may hold a key)"
                             ) from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(f"{what}, without user, password, query or fragment (not shown: they "
                             "may hold a key); the key comes from the environment variable that "
                             "api.key_variable names")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{what}, got {self.base_url!r}")
        # urlsplit drops line ends and tabs, the HTTP library writes a blank as %20.
        if len(self.base_url) > 2000 or any(
                c.isspace() or not c.isprintable() for c in self.base_url):
            raise ValueError(f"{what}, of at most 2000 characters, without blanks and control "
                             f"characters; got {self.base_url[:2000]!r}")
        try:
            named, port = parts.netloc.rpartition("]")[2].partition(":")[1], parts.port
        except ValueError:
            named, port = ":", None
        if named and not port:
            raise ValueError(f"{what}, with a port from 1 to 65535 or without one and its colon; "
                             f"got {self.base_url!r}")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError(f"{what}; the parts of its host's name must have 1 to 63 characters, "
                             f"got {self.base_url!r}") from None
        # One address, one text: it is part of the replies' keys.
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))

    def key(self) -> str:
        """The key, "" for a server without.

        Raises: ValueError, which does not show it, when the variable is not set or empty, or holds
          what no header can carry.
        """
        if not self.key_variable:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ValueError(f"the environment variable {self.key_variable}, which should hold the "
                             f"key for {self.base_url}, is not set")
        if not _KEY.fullmatch(key):
            raise ValueError(f"the environment variable {self.key_variable} holds no key for "
                             f"{self.base_url} that a header can carry: a key is of printable "
                             "ASCII characters, without blanks, line ends or other control "
                             "characters (it is not shown)")
        return key

    def accepts(self, asked: str, answered: str) -> bool:
        """Whether a reply that says it is of model `answered` counts for the model `asked`."""
        if self.reply_model == ANY_MODEL:
            return True
        if self.reply_model:
            return answered == self.reply_model
        rest = answered.removeprefix(asked)
        # "m-mini" is another model than "m": only a version may follow.
        return answered.startswith(asked) and (
            not rest or rest[0] == "@" or re.fullmatch(r"[-:]v?\d[\w.-]*", rest) is not None)

    def price(self, input_tokens: float, output_tokens: float) -> float:
        """Money for so many tokens."""
        return (input_tokens * self.input_price + output_tokens * self.output_price) / 1e6


def endpoint_of(entries: Any) -> Endpoint:
    """An Endpoint from config entries.

    Raises: ValueError for unknown entries, listing the choices.
    """
    known = {f.name for f in dataclasses.fields(Endpoint)}
    extra = sorted(set(entries) - known)
    if extra:
        raise ValueError(f"api has unknown entries {extra}; choose from {sorted(known)}")
    if "base_url" not in entries:
        raise ValueError("api needs a base_url such as http://127.0.0.1:8000/v1")
    return Endpoint(**entries)


def _number(field: str, value: Any, kind: Any, low: float, *, above: bool = False) -> None:
    # bool is an int; NaN passes every comparison that refuses; isfinite fails for a huge int.
    wrong = isinstance(value, bool) or not isinstance(value, kind) or not (
        abs(value) <= sys.float_info.max)
    if wrong or value < low or (above and value == low):
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"api.{field} must be {what} {'above' if above else 'of at least'} {low}, "
                         f"got {value!r}")
