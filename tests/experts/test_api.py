"""The provider against a server that misbehaves on purpose."""

import builtins
import importlib.util
import logging
import time

import numpy as np
import pytest
from odd_server import MODEL, OddServer

from gradejax.experts.api import OpenAIProvider
from gradejax.experts.ask import Request, TooManyMissing, ask
from gradejax.experts.budget import Budget, Limits
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.features import FeatureStore
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import ExpertCallError, Missing, Reply
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.sampling import Sampling

pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")

KEY = "sk-test-4f1c9a7be2d84c00"
QUICK = {"backoff_base": 0.01, "backoff_cap": 0.05, "read_timeout": 2.5, "deadline": 10.0,
         "attempts": 3, "concurrency": 8}


@pytest.fixture
def server():
    with OddServer(KEY) as server:
        yield server


def registry_for(url, *, spec=None, **changes):
    api = Endpoint(base_url=url, **(QUICK | changes))
    remote = ExpertSpec(name="R", model=MODEL, provider="openai", api=api, manager="m",
                        max_new_tokens=16, **(spec or {}))
    return ExpertRegistry((remote,), ExpertSpec(name="M0", model="head"), ("m",))


def run(server, modes, *, provider=None, store=None, on_error="missing", max_missing=1.0,
        registry=None, progress=None, **changes):
    """Replies to one question a mode, and the seconds it took."""
    registry = registry or registry_for(server.url, **changes)
    requests = [Request("R", f"q{i}", [{"role": "user", "content": f"{mode} q{i}"}])
                for i, mode in enumerate(modes)]
    begin = time.monotonic()
    replies = ask(registry, requests, providers={"openai": provider or OpenAIProvider()},
                  store=store, on_error=on_error, max_missing=max_missing, progress=progress)
    return replies, time.monotonic() - begin


def states(replies):
    return [r.finish_reason if isinstance(r, Reply) else r.state for r in replies]


ODD = {
    # mode: (outcome, calls made with 3 attempts)
    "ok": ("stop", 1), "429": ("rate_limited", 3), "429:0.02": ("rate_limited", 3),
    "429:600": ("rate_limited", 1), "429:soon": ("rate_limited", 3), "500": ("failed", 3),
    "503": ("failed", 3), "504": ("timeout", 3), "408": ("timeout", 3), "400": ("failed", 1),
    "hang": ("timeout", 3), "reset": ("failed", 3), "drip": ("timeout", 1), "cut": ("failed", 3),
    "half": ("malformed", 3), "html": ("malformed", 3), "list": ("malformed", 3),
    "deep": ("malformed", 3), "bytes": ("malformed", 3), "empty": ("malformed", 3),
    "model": ("malformed", 1), "big": ("malformed", 1), "error200": ("failed", 3),
    "length": ("length", 1), "nulllength": ("length", 1), "null": ("stop", 1),
    "refusal": ("stop", 1), "filter": ("refused", 1), "tools": ("malformed", 1),
    "nousage": ("stop", 1), "echo": ("stop", 1),
    "429,ok": ("stop", 2), "500,reset,ok": ("stop", 3), "cut,ok": ("stop", 2),
    "html,ok": ("stop", 2), "hang,ok": ("stop", 2),
}  # fmt: skip


def test_every_oddity_ends_in_time_with_its_own_state_and_count(server, tmp_path, caplog,
                                                                monkeypatch):
    monkeypatch.setenv("ODD_KEY", KEY)
    store = FeatureStore(tmp_path / "store")
    # Retry-After 600 makes every later call of this server wait: it is asked in the test below.
    modes = [m for m in ODD if m != "429:600"] * 2
    with caplog.at_level(logging.DEBUG):
        replies, seconds = run(server, modes, store=store, key_variable="ODD_KEY",
                               give_up_after=1000, concurrency=64)
    assert seconds < 40  # no hang; the longest is the drip, ended by the deadline of 10 s
    assert dict(zip(modes, states(replies), strict=True)) == {m: ODD[m][0] for m in modes}
    for i, mode in enumerate(modes):
        # A process that was paused can take the drip for silence, and tries again.
        assert len(server.calls[f"{mode} q{i}"]) == ODD[mode][1] or mode == "drip", mode
        # Every reply belongs to its own question.
        if ODD[mode][0] == "stop" and mode.endswith("ok"):
            assert replies[i].text == f"reply to {mode} q{i}"
    kept = [r for r in replies if isinstance(r, Reply)]
    assert len(store) == len(kept) == store.counters.saved
    # The key went to the server and nowhere else, though the server said it back.
    assert {h["authorization"] for h in server.headers} == {f"Bearer {KEY}"}
    shown = [caplog.text, *(str(r) for r in replies), *(r.text for r in kept)]
    shown += [str(r.exc_info) for r in caplog.records if r.exc_info]
    assert not any(KEY in text for text in shown)
    assert "[key]" in replies[modes.index("html")].message  # it was there to be taken out
    assert replies[modes.index("echo")].text == "your key is [key]"
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files and not any(KEY.encode() in p.read_bytes() for p in files)


def test_the_next_run_asks_only_what_was_missing(server, tmp_path):
    modes = ["ok", "500,500,500,ok", "length", "filter", "ok"]
    first, _ = run(server, modes, store=FeatureStore(tmp_path))
    assert states(first) == ["stop", "failed", "length", "refused", "stop"]
    before = server.total
    store = FeatureStore(tmp_path)
    second, _ = run(server, modes, store=store)
    assert states(second) == ["stop", "stop", "length", "refused", "stop"]
    assert server.total - before == 2 == store.counters.calls  # failures were not cached (F10)
    assert [len(server.calls[f"ok q{i}"]) for i in (0, 4)] == [1, 1]
    # What is read back is what was said.
    for a, b in zip(first, second, strict=True):
        if isinstance(a, Reply):
            assert (a.text, a.usage, a.prompt_tokens, a.seconds) == (
                b.text, b.usage, b.prompt_tokens, b.seconds)
            assert a.tokens.dtype == b.tokens.dtype == np.int32 and len(b.hidden) == 0


def test_a_long_retry_after_gives_up_at_once_and_holds_the_others_back(server):
    replies, seconds = run(server, ["429:600", "ok", "ok"], concurrency=1)
    assert states(replies)[0] == "rate_limited" and seconds < 3
    assert "after the deadline" in replies[0].message


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_waited_for(server, form):
    date = time.strftime("%a;_%d_%b_%Y_%H:%M:%S_GMT", time.gmtime(time.time() + 3.0))
    mode = f"429:{'1' if form == 'seconds' else date},ok"
    replies, _ = run(server, [mode])
    assert states(replies) == ["stop"] and replies[0].usage.attempts == 2
    first, second = server.calls[f"{mode} q0"]
    # Without Retry-After the wait would be at most 0.01 s.
    assert second - first >= 0.9


def test_a_busy_server_is_left_alone_by_all(server):
    replies, _ = run(server, ["429:0.5,ok", *["ok"] * 6], concurrency=1)
    assert states(replies) == ["stop"] * 7
    start = min(t for times in server.calls.values() for t in times)
    other = [t - start for said, times in server.calls.items() for t in times
             if not said.startswith("429") and t > server.calls["429:0.5,ok q0"][0]]
    assert not [t for t in other if 0 < t - (server.calls["429:0.5,ok q0"][0] - start) < 0.45]


@pytest.mark.parametrize("status", ["401", "403", "404", "402"])
def test_a_bad_key_is_not_tried_for_an_hour(server, status):
    replies, seconds = run(server, [status] * 200, concurrency=4)
    assert states(replies) == ["failed"] * 200 and seconds < 10
    assert server.total <= 4  # of the fault: 200 questions × 3 tries
    assert "not asked, after: HTTP " + status in replies[-1].message


def test_a_dead_server_is_given_up(server):
    replies, _ = run(server, ["500"] * 300, concurrency=4, give_up_after=10)
    assert states(replies) == ["failed"] * 300
    assert 30 <= server.total <= (10 + 4) * 3


def test_one_layer_of_retries(server):
    # F04: with 5 attempts of ours and the library's 2 retries on top it would be 15 calls.
    run(server, ["500"], attempts=5)
    assert len(server.calls["500 q0"]) == 5


def test_no_server_at_all_is_missing():
    replies, seconds = run(None, ["ok"] * 3, registry=registry_for("http://127.0.0.1:9/v1"))
    assert states(replies) == ["failed"] * 3 and seconds < 10
    assert "no connection" in replies[0].message


def test_too_many_missing_stop_the_run(server):
    with pytest.raises(TooManyMissing, match=r"3 of 4 calls failed \{'failed': 3\}"):
        run(server, ["500", "500", "500", "ok"], max_missing=0.5)


def test_the_limit_on_calls_under_way():
    with OddServer(delay=0.05) as server:
        replies, _ = run(server, ["ok"] * 30, concurrency=3)
        assert states(replies) == ["stop"] * 30 and server.most_under_way == 3


def test_to_raise_keeps_what_was_finished(server, tmp_path):
    store = FeatureStore(tmp_path)
    with pytest.raises(ExpertCallError, match="expert 'R': HTTP 400"):
        run(server, ["ok"] * 5 + ["400"] + ["ok"] * 500, concurrency=2, store=store,
            on_error="raise")
    assert 0 < len(store) == server.total - 1 < 300  # the rest was not begun


PRICES = {"input_price": 1e6, "output_price": 2e6}  # a token is 1 and 2


def test_costs_are_in_the_records(server, tmp_path):
    for _ in range(2):
        replies, _ = run(server, ["ok", "nousage"], store=FeatureStore(tmp_path), **PRICES)
        assert replies[0].money == 10 * 1 + 5 * 2 and replies[0].total_tokens == 15
        assert not replies[0].usage.estimated and replies[1].usage.estimated
        assert replies[1].money > 0


def test_a_budget_of_money_is_never_exceeded_and_stops_cleanly(server, tmp_path):
    provider = OpenAIProvider(budget=Budget(Limits(money=300.0)))
    store = FeatureStore(tmp_path)
    modes = ["ok"] * 40
    replies, _ = run(server, modes, provider=provider, store=store, **PRICES)
    done = [r for r in replies if isinstance(r, Reply)]
    assert set(states(replies)) == {"stop", "budget"}
    spent = sum(r.money for r in done)
    assert spent == provider.budget.spent.money == 20 * len(done) == 20 * server.total <= 300
    # The most a call may take is some 80 (a token is at least a byte): less than that is left.
    assert spent > 300 - 100
    assert "not asked: money: " in next(r for r in replies if isinstance(r, Missing)).message
    # A run with another budget goes on there and asks nothing twice.
    more, _ = run(server, modes, store=FeatureStore(tmp_path), **PRICES)
    assert states(more) == ["stop"] * 40
    assert {len(times) for times in server.calls.values()} == {1}


def test_a_budget_counts_what_failed_calls_may_have_cost(server):
    # A reply that never came whole may be on the bill; a refused connection is not.
    for mode, charged in (("cut", True), ("filter", True), ("500", False), ("429", False)):
        provider = OpenAIProvider()
        run(server, [mode], provider=provider, attempts=1, **PRICES)
        assert (provider.budget.spent.money > 0) is charged, mode


def test_a_budget_of_time():
    with OddServer(delay=0.1) as server:
        provider = OpenAIProvider(budget=Budget(Limits(seconds=0.5)))
        replies, seconds = run(server, ["ok"] * 100, provider=provider, concurrency=2)
    assert set(states(replies)) == {"stop", "budget"} and seconds < 5
    assert 2 <= states(replies).count("stop") <= 14


def test_what_is_sent(server):
    run(server, ["ok"])
    assert server.bodies[-1] == {"model": MODEL, "temperature": 0.0, "max_tokens": 16,
                                 "messages": [{"role": "user", "content": "ok q0"}]}
    warm = registry_for(server.url, token_field="max_completion_tokens",
                        spec={"sampling": Sampling(0.7, 5, 0.9), "seed": 3})
    run(server, ["ok"], registry=warm)
    body = server.bodies[-1]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 5)
    assert body["max_completion_tokens"] == 16 and "max_tokens" not in body
    assert isinstance(body["seed"], int)


def test_samples_of_a_seat_have_seeds_of_their_own(server, tmp_path):
    registry = registry_for(server.url, spec={"sampling": Sampling(1.0)})
    requests = [Request("R", "q", [{"role": "user", "content": "ok"}], sample=i) for i in range(4)]
    for calls in (4, 4):
        ask(registry, requests, providers={"openai": OpenAIProvider()},
            store=FeatureStore(tmp_path))
        assert server.total == calls  # F10: 4, then none
    assert len({b["seed"] for b in server.bodies}) == 4


def test_variables_of_the_package_do_not_reach_the_server(server, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, f"private-{name}")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    replies, _ = run(server, ["ok"])
    assert states(replies) == ["stop"]
    assert "private" not in str(server.headers).lower()


def test_a_missing_key_and_a_missing_package_are_said_before_anything_is_asked(server, monkeypatch):
    monkeypatch.delenv("ODD_KEY", raising=False)
    with pytest.raises(ValueError, match="environment variable ODD_KEY"):
        run(server, ["ok"], key_variable="ODD_KEY", on_error="raise")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "openai":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install 'gradejax\[api\]'"):
        run(server, ["ok"], on_error="raise")
    assert server.total == 0


PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@pytest.mark.parametrize(("variable", "proxy", "said"), [
    ("ALL_PROXY", "ftp://u:secret@127.0.0.1:1", "ALL_PROXY.* cannot be used"),
    ("HTTP_PROXY", "http://u:secret@127.0.0.1:abc", "HTTP_PROXY is no address"),
    ("HTTPS_PROXY", "u:secret@127.0.0.1:99999", "HTTPS_PROXY is no address"),
    ("ALL_PROXY", "http://u:secret@[::1", "ALL_PROXY is no address"),
    ("ALL_PROXY", "socks5://u:secret@127.0.0.1:1", "ALL_PROXY.* needs the package socksio"),
])
def test_a_proxy_that_cannot_be_used_is_said_before_anything_is_asked(server, monkeypatch, variable,
                                                                      proxy, said):
    if "socks" in proxy and importlib.util.find_spec("socksio"):
        pytest.skip("the package socksio is installed: SOCKS proxies can be used")
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(ValueError, match=said) as got:
        OpenAIProvider().describe(registry_for(server.url)["R"])
    assert "secret" not in str(got.value)
    with pytest.raises(ValueError, match=said):
        run(server, ["ok"], on_error="raise")
    monkeypatch.delenv(variable)
    assert states(run(server, ["ok"])[0]) == ["stop"]


@pytest.mark.parametrize("after", ["1" + "0" * 400, "9" * 5000, "1e400", "-" + "9" * 400])
def test_an_absurd_retry_after_is_one_that_is_not_given(server, after):
    replies, _ = run(server, [f"429:{after}"])
    assert states(replies) == ["rate_limited"]
    assert "HTTP 429" in replies[0].message
