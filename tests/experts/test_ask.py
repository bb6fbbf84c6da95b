import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from fake_experts import SAMPLED, make_provider, make_registry, user

from gradejax.experts.ask import Query, Request, TooManyMissing, ask, ask_all
from gradejax.experts.features import FeatureStore
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import ExpertCallError, Missing, PromptTooLong, Reply
from gradejax.experts.segments import StoreWriteError
from gradejax.experts.spec import ExpertSpec


def queries(n, text="q"):
    return [Query(f"id{i}", user(f"expert {text}{i}"), user(f"head {text}{i}")) for i in range(n)]


def run(n=5, store=None, registry=None, provider=None, **options):
    """ask_all with a fresh process's provider; returns (answers, engine)."""
    provider, engine, _ = provider or make_provider()
    answers = ask_all(registry or make_registry(), queries(n), providers={"local": provider},
                      store=store, **options)
    return answers, engine


def texts(answers):
    return {name: [getattr(r, "text", r) for r in rows] for name, rows in answers.items()}


def test_each_seat_answers_each_question_in_order():
    answers, engine = run(3)
    assert list(answers) == ["A1", "A2", "B1", "M0"]
    for name, rows in answers.items():
        assert len(rows) == 3
        for i, reply in enumerate(rows):
            prompt = f"user:{'head' if name == 'M0' else 'expert'} q{i}"
            assert reply.tokens[1] == ord(prompt[-1]) and reply.prompt_tokens == len(prompt)
    assert [len(rows[0].hidden) for rows in answers.values()] == [5, 5, 3, 2]
    assert engine.calls == 12


def test_a_second_run_calls_no_language_model(tmp_path):
    first, engine = run(store=FeatureStore(tmp_path))
    assert engine.calls == 20
    store = FeatureStore(tmp_path)
    second, engine = run(store=store)
    assert engine.batches == [] and store.counters.calls == 0
    assert (store.counters.hits, store.counters.misses) == (20, 0)
    assert texts(first) == texts(second)
    for name in first:
        for a, b in zip(first[name], second[name], strict=True):
            for field in ("tokens", "logprobs", "hidden"):
                np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
            assert (a.prompt_tokens, a.seconds) == (b.prompt_tokens, b.seconds)


def test_only_new_questions_are_generated(tmp_path):
    run(3, store=FeatureStore(tmp_path))
    _, engine = run(5, store=FeatureStore(tmp_path))
    assert engine.calls == 2 * 4


def test_replies_do_not_depend_on_batches_order_or_company():
    whole = texts(run(7)[0])
    assert texts(run(7, chunk_size=2)[0]) == whole
    alone = run(7, agents=["A2"])[0]["A2"]
    assert [r.text for r in alone] == whole["A2"]
    provider, _, _ = make_provider()
    turned = ask_all(make_registry(), queries(7)[::-1], providers={"local": provider})
    assert [r.text for r in turned["A2"]][::-1] == whole["A2"]


def test_chunks_hold_prompts_of_like_length():
    provider, engine, _ = make_provider()
    lengths = []
    provider._generate = lambda *a, **k: lengths.append([len(p) for p in a[2]]) or engine(*a, **k)
    mixed = [Query(f"id{i}", user("x" * n), user("h")) for i, n in enumerate([9, 1, 8, 2, 7, 3])]
    ask_all(make_registry(), mixed, agents=["A1"], providers={"local": provider}, chunk_size=2)
    assert lengths == [[6, 7], [8, 12], [13, 14]]  # in the order asked: [14, 6], [13, 7], ...


def test_samples_of_one_prompt_are_own_records(tmp_path):
    # F10: n = 4 at temperature 1, run twice: 4 calls, then 0; keyed by prompt alone it is 1.
    registry = make_registry()
    requests = [Request("A2", "q", user("p"), sample=i) for i in range(4)]
    for calls in (4, 0):
        provider, engine, _ = make_provider()
        store = FeatureStore(tmp_path)
        replies = ask(registry, requests, providers={"local": provider}, store=store)
        assert engine.calls == calls and len(store) == 4
        assert len({r.text for r in replies}) == 4


def test_equal_calls_of_two_seats_are_made_once():
    twin = ExpertSpec(name="A3", model="math", manager="arithmetic", sampling=SAMPLED, seed=1)
    old = make_registry()
    registry = ExpertRegistry((*old.agents, twin), old.orchestrator, old.managers)
    answers, engine = run(3, registry=registry)
    assert engine.calls == 12  # 15 seats × questions
    assert texts(answers)["A3"] == texts(answers)["A2"]
    other, engine = run(3, registry=registry.swap("A3", ExpertSpec(
        name="A3", model="math", sampling=SAMPLED, seed=2)))
    assert engine.calls == 15 and texts(other)["A3"] != texts(other)["A2"]


def test_another_weights_digest_is_asked_again(tmp_path):
    run(2, store=FeatureStore(tmp_path))
    _, engine = run(2, store=FeatureStore(tmp_path), provider=make_provider(weights="w1"))
    assert engine.calls == 8


def test_a_failing_expert_is_missing_never_wrong_and_asked_again(tmp_path, caplog):
    provider = make_provider()
    provider[1].fail["logic"] = ExpertCallError("rate_limited", "busy")
    with caplog.at_level(logging.ERROR):
        answers, engine = run(3, store=FeatureStore(tmp_path), provider=provider,
                              on_error="missing")
    assert answers["B1"] == [Missing("rate_limited", "busy")] * 3
    assert all(isinstance(r, Reply) for name in ("A1", "A2", "M0") for r in answers[name])
    assert any("busy" in str(r.exc_info[1]) for r in caplog.records)  # the real error is logged
    assert len(FeatureStore(tmp_path)) == 9  # errors are not cached
    answers, engine = run(3, store=FeatureStore(tmp_path))
    assert engine.batches == [("logic", 3)]
    assert all(isinstance(r, Reply) for r in answers["B1"])


def test_a_failing_chunk_does_not_take_the_others_with_it(tmp_path):
    provider = make_provider()
    provider[1].spoil = "q1"
    answers, _ = run(3, provider=provider, on_error="missing", store=FeatureStore(tmp_path))
    for rows in answers.values():
        assert [getattr(r, "state", "ok") for r in rows] == ["ok", "malformed", "ok"]
    assert len(FeatureStore(tmp_path)) == 8


def test_a_model_that_cannot_be_loaded_is_missing():
    registry = make_registry().swap("B1", ExpertSpec(name="B1", model="gone"))
    answers, _ = run(2, registry=registry, on_error="missing")
    assert [r.state for r in answers["B1"]] == ["failed", "failed"]
    assert "no model folder 'gone'" in answers["B1"][1].message
    assert isinstance(answers["A1"][0], Reply)


def test_errors_are_raised_by_default_and_finished_replies_are_kept(tmp_path):
    provider = make_provider()
    provider[1].fail["logic"] = OSError("cable")
    with pytest.raises(OSError, match="cable"):
        run(3, store=FeatureStore(tmp_path), provider=provider)
    assert len(FeatureStore(tmp_path)) == 6  # A1 and A2, asked before
    provider = make_provider()
    provider[1].spoil = "q1"
    with pytest.raises(ExpertCallError, match="expert 'B1'.*not finite.*1 of 3 calls"):
        run(3, store=FeatureStore(tmp_path), provider=provider)
    assert len(FeatureStore(tmp_path)) == 8


def test_too_many_failures_stop_the_run():
    provider = make_provider()
    for model in ("math", "logic"):
        provider[1].fail[model] = ExpertCallError("timeout", "60 s")
    with pytest.raises(TooManyMissing, match=r"9 of 12 calls failed \{'timeout': 9\}.*50%"):
        run(3, provider=provider, on_error="missing")
    run(3, provider=provider, on_error="missing", max_missing=0.75)


def test_a_long_prompt_is_found_before_anything_is_generated():
    options = {"context": len("user:expert q0") + 256}
    provider = make_provider(**options)
    mixed = [*queries(1), Query("long", user("expert q" + "x" * 9), user("head q0"))]
    with pytest.raises(PromptTooLong, match="question 'long', expert 'A1'.*22 tokens.*3 such calls"
                       ) as got:
        ask_all(make_registry(), mixed, providers={"local": provider[0]})
    assert isinstance(got.value, ValueError) and provider[1].batches == []
    answers = ask_all(make_registry(), mixed, providers={"local": provider[0]}, on_long="missing",
                      max_missing=0.0)
    for name in ("A1", "A2", "B1"):
        assert isinstance(answers[name][0], Reply) and answers[name][1].state == "too_long"
    assert all(isinstance(r, Reply) for r in answers["M0"])


def test_a_cut_reply_says_so(tmp_path):
    for _ in range(2):
        provider, _, _ = make_provider()
        replies = ask(make_registry(), [Request("A1", "q", user("cut")),
                                        Request("A1", "r", user("whole"))],
                      providers={"local": provider}, store=FeatureStore(tmp_path))
        assert [r.truncated for r in replies] == [True, False]


def test_a_full_disk_is_an_error_also_when_failures_are_let_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StoreWriteError):
        run(3, store=FeatureStore(tmp_path), on_error="missing")


@pytest.mark.parametrize(("options", "said"), [
    ({"on_error": "ignore"}, "unknown on_error 'ignore'; choose from"),
    ({"on_long": "cut"}, "unknown on_long 'cut'; choose from"),
    ({"chunk_size": 0}, "chunk_size must be at least 1"),
    ({"agents": ["A9"]}, r"unknown expert 'A9'; choose from \['A1'"),
    ({"agents": ["A1", "A1"]}, "asked twice"),
])
def test_bad_arguments(options, said):
    with pytest.raises(ValueError, match=said):
        run(2, **options)


def test_duplicate_ids_and_unknown_providers():
    provider, _, _ = make_provider()
    with pytest.raises(ValueError, match=r"duplicate question ids \['id0'\]"):
        ask_all(make_registry(), queries(1) * 2, providers={"local": provider})
    with pytest.raises(ValueError, match=r"no provider 'local'; choose from \['other'\]"):
        ask_all(make_registry(), queries(1), providers={"other": provider})


def test_progress_counts_to_the_end(tmp_path):
    seen = []
    run(5, store=FeatureStore(tmp_path), chunk_size=2, progress=seen.append)
    assert [p.done for p in seen] == [0, 2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20]
    assert {p.total for p in seen} == {20} and seen[-1].model == "head"
    seen.clear()
    run(5, store=FeatureStore(tmp_path), progress=seen.append)
    assert [(p.done, p.stored) for p in seen] == [(20, 20)]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from fake_experts import make_provider, make_registry
from test_ask import queries
from gradejax.experts.ask import ask_all
from gradejax.experts.features import FeatureStore
provider, engine, _ = make_provider()
real = type(engine).__call__
def generate(self, *args, **options):
    if len(engine.batches) == 4:
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the fifth chunk
    return real(self, *args, **options)
type(engine).__call__ = generate
ask_all(make_registry(), queries(9), providers={"local": provider},
        store=FeatureStore(sys.argv[1]), chunk_size=3)
"""


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), here],
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                          capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = FeatureStore(tmp_path)
    assert len(store) == 12  # four chunks of three; the fifth is lost
    answers, engine = run(9, store=store, chunk_size=3)
    assert engine.calls == 36 - 12
    assert texts(answers) == texts(run(9)[0])
