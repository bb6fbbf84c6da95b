"""One OpenAI-compatible server: sending a question, and naming what goes wrong.

The `openai` package builds and sends the request. It is told not to retry (`retry.py` is the one
layer that does), not to follow redirects (the key would go along), and the body is read here, so
that a body without end is left in time.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from gradejax.experts import retry
from gradejax.experts.completion import CallFailed, Completion, read_completion
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.redaction import redactor
from gradejax.experts.spec import ExpertSpec

# Said by several servers for a prompt that does not fit, as codes or in the message.
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context size", "context window")
_NO_MONEY = ("insufficient_quota", "billing_hard_limit_reached")


class Connection:
    """A client for one endpoint. Lives on one event loop.

    Attributes:
      slots: as many calls as may be under way.
      redact: text -> text without the key.

    Raises: ValueError when the `openai` package or the key is missing, or a proxy cannot be used.
    """

    def __init__(self, endpoint: Endpoint):
        openai = _openai()
        self.endpoint = endpoint
        self.slots = asyncio.Semaphore(endpoint.concurrency)
        key = endpoint.key()
        self.redact = redactor(key)
        self._paused_until = 0.0
        self._openai = openai
        absent = openai.Omit()
        self._client = openai.AsyncOpenAI(
            # A server without keys ignores it; the package insists on one. The other variables of
            # the package (OPENAI_ORG_ID, ...) belong to its vendor and must not reach this server.
            api_key=key or "none", admin_api_key="", organization="", project="",
            default_headers={"OpenAI-Organization": absent, "OpenAI-Project": absent},
            base_url=endpoint.base_url, max_retries=0,
            timeout=openai.Timeout(endpoint.read_timeout, connect=endpoint.connect_timeout,
                                   pool=None),
            http_client=_http_client(openai))

    @staticmethod
    def check(endpoint: Endpoint) -> None:
        """Raises: ValueError when the `openai` package or the key is missing, or the environment
        names a proxy that cannot be used."""
        openai = _openai()
        endpoint.key()
        _check_proxies(openai, tuple(sorted(getproxies().items())))

    def pause(self, until: float) -> None:
        """Let no call begin before a time of the event loop's clock."""
        self._paused_until = max(self._paused_until, until)

    def pause_left(self, now: float) -> float:
        return max(0.0, self._paused_until - now)

    async def call(self, spec: ExpertSpec, prompt: str, seed: int) -> Completion:
        """One try. Whatever the server said, what comes back is without the key.

        Raises: CallFailed.
        """
        try:
            got = await self._call(spec, prompt, seed)
        except CallFailed as failed:
            failed.message = self.redact(failed.message)
            raise
        return got._replace(text=self.redact(got.text), model=self.redact(got.model))

    async def _call(self, spec: ExpertSpec, prompt: str, seed: int) -> Completion:
        openai = self._openai
        try:
            body = await self._body(_request(spec, prompt, seed))
        except openai.APIStatusError as error:
            raise self._status(error) from None
        except openai.APITimeoutError as error:
            connecting = "Connect" in type(error.__cause__).__name__
            seconds = self.endpoint.connect_timeout if connecting else self.endpoint.read_timeout
            raise CallFailed("timeout", f"{'no connection' if connecting else 'the server silent'} "
                             f"for {seconds:g} s", again=True, billed=not connecting) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise CallFailed("failed", f"no connection: {type(cause).__name__}: {cause}",
                             again=True, billed="Connect" not in type(cause).__name__) from None
        return read_completion(body, model=spec.model, endpoint=self.endpoint,
                               prompt_bytes=len(prompt.encode("utf-8")))

    async def _body(self, request: dict[str, Any]) -> bytes:
        create = self._client.chat.completions.with_streaming_response.create
        parts: list[bytes] = []
        size, limit = 0, self.endpoint.max_reply_bytes
        async with create(**request) as response:
            try:
                async for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        break
            except Exception as error:
                # Here errors of the HTTP library come bare; which library it is depends on the
                # version of the package, so they are known by name.
                name = type(error).__name__
                state = "timeout" if "Timeout" in name else "failed"
                raise CallFailed(state, f"the reply broke off after {size:,} bytes: {name}",
                                 again=True) from None
        if size > limit:
            raise CallFailed("malformed", f"the reply is longer than {limit:,} bytes", again=False)
        return b"".join(parts)

    def _status(self, error: Any) -> CallFailed:
        """An HTTP status that is no success, as a failed call."""
        status, code = error.status_code, str(error.code or "")
        said = str(error.message)
        message = f"HTTP {status}: {said}"
        if status == 429 and code not in _NO_MONEY:
            return CallFailed("rate_limited", message, again=True, billed=False,
                              wait=retry.retry_after(error.response.headers, time.time()))
        if status in (400, 413, 422) and any(w in code or w in said.lower() for w in _TOO_LONG):
            return CallFailed("too_long", message, again=False, billed=False)
        if code == "content_filter":
            return CallFailed("refused", message, again=False, billed=False)
        if retry.retryable(status) and status != 429:
            state = "timeout" if status in (408, 504) else "failed"
            return CallFailed(state, message, again=True, billed=False,
                              wait=retry.retry_after(error.response.headers, time.time()))
        # A bad key, no such model, no money: every other question would meet the same.
        closed = status in (401, 402, 403, 404, 429)
        return CallFailed("failed", message, again=False, closed=closed, billed=False)


def _request(spec: ExpertSpec, prompt: str, seed: int) -> dict[str, Any]:
    sampling = spec.sampling
    request: dict[str, Any] = {
        "model": spec.model, "messages": json.loads(prompt), "temperature": sampling.temperature,
        spec.api.token_field: spec.max_new_tokens}
    if sampling.temperature:
        request |= {"top_p": sampling.top_p, "seed": seed}
        if sampling.top_k:
            # Not in OpenAI's own API; most servers of open models know it.
            request["extra_body"] = {"top_k": sampling.top_k}
    return request


def _http_client(openai) -> Any:
    """The HTTP library's client. It reads the proxies of the environment.

    Raises: ValueError when it cannot use them; without their addresses, which may hold a password.
    """
    names = sorted(f"{name}_proxy".upper() for name in getproxies())
    what = f"the proxy settings of the environment (variables {', '.join(names)}) cannot be used"
    for name, address in getproxies().items():
        if name in ("http", "https", "all"):
            try:
                urlsplit(address if "://" in address else f"http://{address}").port  # noqa: B018
            except ValueError:
                raise ValueError(f"{what}: {name.upper()}_PROXY is no address with a port from 1 "
                                 "to 65535 (not shown: it may hold a password)") from None
    try:
        return openai.DefaultAsyncHttpxClient(follow_redirects=False)
    except ImportError:
        raise ValueError(f"{what}: a SOCKS proxy needs the package socksio; install it with "
                         "pip install socksio, or unset the variable") from None
    except Exception as error:
        if not names or isinstance(error, OSError):  # the certificates
            raise
        raise ValueError(f"{what}: {type(error).__name__} (the addresses are not shown: they may "
                         "hold a password)") from None


@functools.lru_cache(maxsize=8)
def _check_proxies(openai, proxies: tuple) -> None:
    # Making a client reads certificates, tens of milliseconds; `proxies` is what may change.
    _http_client(openai)


def _openai():
    """The `openai` package, imported when a seat needs it."""
    try:
        import openai
    except ImportError:
        raise ValueError("an expert behind an API needs the package openai; install it with "
                         "pip install 'gradejax[api]'") from None
    return openai
