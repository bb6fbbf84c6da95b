"""Local models and APIs at the same time, progress, and what is kept when asking is broken off."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from fake_experts import make_provider, make_registry, user
from odd_server import MODEL, OddServer

from gradejax.experts.api import OpenAIProvider
from gradejax.experts.ask import Query, ask_all
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.features import FeatureStore
from gradejax.experts.progress import Progress, Tracker, duration
from gradejax.experts.replies import Missing, Reply
from gradejax.experts.segments import StoreWriteError
from gradejax.experts.spec import ExpertSpec

pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")


def mixed(url, **api):
    """The pool of fakes with B1 behind an API."""
    spec = ExpertSpec(name="B1", model=MODEL, provider="openai", max_new_tokens=16,
                      api=Endpoint(base_url=url, backoff_base=0.01, backoff_cap=0.05, **api))
    return make_registry().swap("B1", spec)


def queries(n, mode="ok"):
    return [Query(f"id{i}", user(f"{mode} q{i}"), user(f"head q{i}")) for i in range(n)]


def run(url, n, *, local=None, store=None, **options):
    local = local or make_provider()[0]
    return ask_all(mixed(url, **options.pop("api", {})), queries(n, options.pop("mode", "ok")),
                   providers={"local": local, "openai": OpenAIProvider()}, store=store, **options)


def test_replies_of_both_kinds_stand_in_their_places():
    with OddServer() as server:
        answers = run(server.url, 5)
    assert list(answers) == ["A1", "A2", "B1", "M0"]
    assert [r.text for r in answers["B1"]] == [f"reply to ok q{i}" for i in range(5)]
    assert [len(rows[0].hidden) for rows in answers.values()] == [5, 5, 0, 2]


def test_local_models_and_apis_are_asked_at_the_same_time():
    """The first local batch waits until the server is at work and has not done: asked one after the
    other, it would see none of the calls, or all."""
    local, engine, _ = make_provider()
    with OddServer(delay=0.2) as server:
        seen = []

        def slow(*args, **options):
            deadline = time.monotonic() + 20
            while server.total == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(server.total)
            return engine(*args, **options)

        local._generate = slow
        run(server.url, 6, local=local, api={"concurrency": 1})
        assert server.total == 6
    assert 0 < seen[0] < 6  # the first local batch ran while the server was under way


def test_a_failing_api_leaves_the_local_replies_alone(tmp_path):
    with OddServer() as server:
        answers = run(server.url, 4, mode="500", store=FeatureStore(tmp_path), on_error="missing",
                      api={"attempts": 1})
        assert [r.state for r in answers["B1"]] == ["failed"] * 4
        assert all(isinstance(r, Reply) for name in ("A1", "A2", "M0") for r in answers[name])
        assert len(FeatureStore(tmp_path)) == 12


def test_a_failing_local_model_keeps_what_the_api_finished(tmp_path):
    local, engine, _ = make_provider()
    with OddServer() as server:
        real = local._generate

        def after_the_server(*args, **options):
            while server.total < 4:
                time.sleep(0.01)
            raise OSError("cable")

        local._generate = after_the_server
        with pytest.raises(OSError, match="cable"):
            run(server.url, 4, local=local, store=FeatureStore(tmp_path))
        assert len(FeatureStore(tmp_path)) == 4
        local._generate = real
        run(server.url, 4, local=local, store=FeatureStore(tmp_path))
        assert server.total == 4 and engine.calls == 12


def test_a_full_disk_is_an_error_in_a_lane_too(tmp_path, monkeypatch):
    real = os.fsync

    def full(handle):
        if threading.current_thread() is not threading.main_thread():
            raise OSError(28, "full")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with OddServer() as server, pytest.raises(StoreWriteError):
        run(server.url, 3, store=FeatureStore(tmp_path), on_error="missing")


def test_progress_counts_everything_once():
    seen = []
    with OddServer(delay=0.01) as server:
        run(server.url, 5, progress=seen.append, chunk_size=2)
    assert seen[0].done == 0 and seen[-1].done == 20
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {p.total for p in seen} == {20}
    assert seen[-1].seconds_left == 0


def test_time_left_is_that_of_the_slowest_lane():
    now, seen = [0.0], []
    tracker = Tracker(seen.append, done=1, total=41, stored=1, clock=lambda: now[0])
    tracker.lane("local", 30)
    tracker.lane("api 1", 10)
    tracker.start()
    now[0] = 10.0
    tracker.finished("local", 20, "a")
    assert seen[-1] == Progress(21, 41, 1, "a", None)  # of the API nothing is known
    tracker.finished("api 1", 2, "b")
    # Local: 10 left at 2 a second, 5 s. API: 8 left at .2 a second, 40 s. Their sum would be 45.
    assert seen[-1] == Progress(23, 41, 1, "b", 40.0)
    tracker.finished("local", 10, "a")
    tracker.finished("api 1", 8, "b")
    assert seen[-1] == Progress(41, 41, 1, "b", 0.0)


def test_durations_as_people_say_them():
    assert [duration(s) for s in (0.2, 59, 60, 200, 7500)] == [
        "0 s", "59 s", "1 min 0 s", "3 min 20 s", "2 h 5 min"]


ASKING = """
import sys
sys.path.insert(0, sys.argv[1])
from test_lanes import run
from gradejax.experts.features import FeatureStore
store = FeatureStore(sys.argv[3])
try:
    run(sys.argv[2], 200, store=store, agents=["B1"], api={"concurrency": 4})
except KeyboardInterrupt:
    sys.exit(3)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_broken_off_and_gone_on_with(tmp_path, how):
    """Ctrl-C: nothing is asked twice. Kill: only what was not saved yet, about a second's worth."""
    with OddServer(delay=0.1) as server:
        command = [sys.executable, "-c", ASKING, str(pathlib.Path(__file__).parent), server.url,
                   str(tmp_path / "store")]
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        # Something must be asked and something saved; how soon depends on the machine.
        while not (server.total >= 16 and list((tmp_path / "store").glob("*.seg"))):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.02)
        child.send_signal(how)
        _, errors = child.communicate(timeout=60)
        assert child.returncode == (3 if how == signal.SIGINT else -how), errors.decode()
        asked, store = server.total, FeatureStore(tmp_path / "store")
        saved = len(store)
        assert 0 < saved <= asked < 200
        if how == signal.SIGINT:
            assert saved == asked  # those under way were waited for
        answers = run(server.url, 200, store=store, agents=["B1"], api={"concurrency": 50})
        assert all(isinstance(r, Reply) for r in answers["B1"])
        # Exactly what was not saved is asked again.
        assert server.total == 200 + asked - saved


def test_missing_is_not_stored_and_asked_again(tmp_path):
    with OddServer() as server:
        first = run(server.url, 3, mode="500,ok", store=FeatureStore(tmp_path),
                    on_error="missing", api={"attempts": 1})
        assert all(isinstance(r, Missing) for r in first["B1"])
        second = run(server.url, 3, mode="500,ok", store=FeatureStore(tmp_path))
        assert all(isinstance(r, Reply) for r in second["B1"])
