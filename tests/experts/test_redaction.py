"""A key said back by a server, in every form that reaches a message."""

import html
import json
import logging
import time
from urllib.parse import quote, quote_plus

import pytest
from odd_server import MODEL, OddServer, completion

from gradejax.experts.api import OpenAIProvider
from gradejax.experts.ask import Request, ask
from gradejax.experts.completion import CallFailed, read_completion
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.features import FeatureStore
from gradejax.experts.redaction import redactor
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import Reply
from gradejax.experts.spec import ExpertSpec

KEYS = ["sk-abc/def+123456789", "k", "!#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~\"", "k3/" * 300]


def escaped(key):
    """JSON with every character escaped: a server may do so, and decoding undoes it."""
    return "".join(f"\\u{ord(c):04x}" for c in key)


FORMS = {
    "plain": lambda k: k, "json": lambda k: json.dumps(k)[1:-1],
    "slash": lambda k: json.dumps(k)[1:-1].replace("/", "\\/"),
    "twice": lambda k: json.dumps(json.dumps(k).replace("/", "\\/")),
    "unicode": escaped, "upper": lambda k: escaped(k).replace("\\u00", "\\u00").upper().replace(
        "\\U", "\\u"),
    "repr": lambda k: repr(k + "\"'")[1:-1], "bytes": lambda k: repr(k.encode()),
    "hex": lambda k: "".join(f"\\x{ord(c):02x}" for c in k),
    "url": quote, "whole url": lambda k: quote(k, safe=""), "plus": quote_plus,
    "url lower": lambda k: "".join(f"%{ord(c):02x}" for c in k),
    "url twice": lambda k: quote(quote(k, safe=""), safe=""), "html": html.escape,
    "mixed": lambda k: "".join(c if i % 2 else f"%{ord(c):02X}" for i, c in enumerate(k)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", KEYS, ids=["usual", "short", "all", "long"])
def test_a_key_is_found_in_every_form(form, key):
    said = redactor(key)(f"<<{FORMS[form](key)}>>")
    # What is left over are quotation marks around it.
    found, rest = "[key]" in said, len(said) - len("<<[key]>>")
    assert found and rest < 12


def test_other_text_is_left_alone():
    redact = redactor(KEYS[0])
    for text in ("", "a\\nb", "100% of R&D \\frac{1}{2}", KEYS[0][:-1], "\\" * 100, "%25" * 100):
        assert redact(text) == text
    assert redactor("")("text") == "text"


@pytest.mark.parametrize("part", ["\\", "%25", "s", "&#", "\\u00"])
def test_a_long_body_takes_no_quadratic_time(part):
    begin = time.monotonic()
    redactor(KEYS[0])(part * 200_000 + "%")
    assert time.monotonic() - begin < 5


def test_a_key_at_the_end_of_a_clipped_message_is_not_cut_before_it_is_found():
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1")
    for before in range(40, 320, 7):
        with pytest.raises(CallFailed) as got:
            read_completion(b"x" * before + KEYS[0].encode(), model="m", endpoint=endpoint,
                            prompt_bytes=1)
        got.value.message = redactor(KEYS[0])(got.value.message)
        assert "sk-" not in str(got.value) and len(str(got.value)) < 400


KEY = KEYS[0]


def _with(**words):
    text = json.dumps(completion("WORDS"))
    text = text.replace(MODEL, words.get("model", MODEL)).replace('"stop"', words.get(
        "finish", '"stop"'))
    return text.replace("WORDS", words.get("content", "x")).encode()


OWN = {
    "slash": b'{"error": "bad key sk-abc\\/def+123456789"}',
    "unicode": f'{{"error": "bad key {escaped(KEY)}"}}'.encode(),
    "nested": json.dumps({"error": json.dumps({"is": KEY}).replace("/", "\\/")}).encode(),
    "url": json.dumps({"error": quote(KEY, safe="")}).encode(),
    "name": _with(model=escaped(KEY)), "version": _with(model=f"{MODEL}-1{KEY}"),
    "end": _with(finish=f'"{escaped(KEY)}"'), "endlist": _with(finish=f'["{escaped(KEY)}"]'),
    "choices": json.dumps({"choices": {"is": KEY}}).replace("/", "\\/").encode(),
    "message": json.dumps({"model": MODEL, "choices": [{"message": [KEY]}]}).encode(),
    "broken": b"x" * 70 + KEY.encode() + b"{", "brokenurl": quote(KEY, safe="").encode(),
    "401": (401, f'{{"error": {{"message": "{escaped(KEY)}"}}}}'.encode()),
    "400": (400, b'{"error": "sk-abc\\/def+123456789"}'), "403": (403, b"<p>" + KEY.encode()),
    "500": (500, quote(KEY, safe="").encode()), "content": _with(content=escaped(KEY)),
    "contenturl": _with(content=quote(KEY, safe="")),
}  # fmt: skip


@pytest.mark.parametrize("reply_model", ["", "*"])
def test_no_message_reply_log_or_file_shows_the_key(tmp_path, monkeypatch, caplog, reply_model):
    pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")
    monkeypatch.setenv("ODD_KEY", KEY)
    with OddServer(own=OWN) as server, caplog.at_level(logging.INFO):
        replies = ask_odd(server, OWN, FeatureStore(tmp_path), reply_model=reply_model)
        assert {h["authorization"] for h in server.headers} == {f"Bearer {KEY}"}
    shown = [*map(str, replies), *(r.text for r in replies if isinstance(r, Reply)), caplog.text]
    files = [p.read_bytes().decode("latin-1") for p in tmp_path.rglob("*") if p.is_file()]
    assert files and sum("[key]" in text for text in shown) >= len(OWN) - 2
    for text in (*shown, *files):
        for form in ("123456789", escaped("12345"), "sk-abc"):
            assert form not in text


def test_an_unexpected_exception_is_logged_without_the_key(monkeypatch, caplog):
    pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")
    monkeypatch.setenv("ODD_KEY", KEY)

    def broken(*args, **kwargs):
        raise RuntimeError(f"header {KEY.encode()!r}")

    monkeypatch.setattr("gradejax.experts.connection._request", broken)
    with OddServer() as server:
        [reply] = ask_odd(server, ["ok"])
    assert reply.state == "failed" and reply.message == "RuntimeError: header b'[key]'"
    # Where it happened is in the log all the same.
    assert "in broken" in caplog.text and KEY not in caplog.text


def test_a_key_that_no_header_can_carry_is_never_sent(monkeypatch, caplog):
    pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")
    monkeypatch.setenv("ODD_KEY", "sk-a\nX-Evil: 1")
    with OddServer() as server:
        with pytest.raises(ValueError, match="variable ODD_KEY holds no key") as got:
            ask_odd(server, ["ok"], on_error="raise")
        assert server.total == 0
    assert "sk-a" not in str(got.value) + caplog.text


def ask_odd(server, modes, store=None, on_error="missing", **changes):
    api = Endpoint(base_url=server.url, key_variable="ODD_KEY", attempts=1, concurrency=1,
                   give_up_after=100, **changes)
    replies = []
    for mode in modes:  # one by one: a status 401 ends the asking of the rest
        spec = ExpertSpec(name="R", model=MODEL, provider="openai", api=api, manager="m",
                          max_new_tokens=16)
        registry = ExpertRegistry((spec,), ExpertSpec(name="M0", model="head"), ("m",))
        request = Request("R", mode, [{"role": "user", "content": f"{mode} q"}])
        replies += ask(registry, [request], providers={"openai": OpenAIProvider()}, store=store,
                       on_error=on_error, max_missing=1.0)
    return replies
