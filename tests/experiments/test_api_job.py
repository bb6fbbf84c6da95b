"""The main job with a pool of which one expert is behind an API (served by our own engine here;
tests/experts/test_real_server.py has a real server)."""

import json
import os
import pathlib
import threading

import numpy as np
import pytest
from rich.console import Console

import gradejax
from experiments import config as config_lib
from experiments import run
from experiments.build import build
from experiments.serve_tiny import TinyServer
from gradejax.experts.features import FeatureStore
from gradejax.models.encoder import states_below
from gradejax.systems import asking
from gradejax.systems.description import registry_of
from gradejax.tasks.reasoning_gym import ReasoningGymTask

pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "experiments/configs/grade_tiny_api.py"
KEY = "sk-job-77d1e0b5a3c94f26"
SMALL = [
    "--config.seeds=0,", "--config.task.train_questions=24", "--config.task.heldout_questions=12",
    "--config.train.batch_size=8", "--config.grade.d=8", "--config.grade.anchors=8",
    "--config.grade.memory_slots=16", "--config.evaluation.replicates=100",
    "--config.store.batch_size=32", "--config.train.steps=2",
    "--config.pool.agents.B3.api.key_variable=JOB_TEST_KEY",
    "--config.pool.agents.B3.api.backoff_base=0.01",
    "--config.pool.agents.B3.api.attempts=2",
    "--config.pool.agents.B3.api.input_price=1.0", "--config.pool.agents.B3.api.output_price=4.0",
]  # fmt: skip


class Faltering(TinyServer):
    """Answers a third of the questions with 503 while `down`; repeats the key in what it says."""

    down = True

    def complete(self, body):
        if self.down and len(body["messages"][-1]["content"]) % 3 == 0:
            return 503, {"error": {"message": f"overloaded, {KEY}"}}
        return super().complete(body)


@pytest.fixture(scope="module")
def served():
    with Faltering("checkpoints/algorithmic") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def arguments(base, server, *extra):
    return [f"--config={CONFIG}", f"--workdir={base}/run", f"--config.store.path={base}/store",
            f"--config.pool.agents.B3.api.base_url={server.address}", *SMALL, *extra]  # fmt: skip


@pytest.fixture(scope="module")
def done(served, tmp_path_factory):
    """A finished run against a server that fails now and then: (folder, server)."""
    base = tmp_path_factory.mktemp("api_job")
    here, before = os.getcwd(), os.environ.get("JOB_TEST_KEY")
    os.chdir(ROOT)
    os.environ["JOB_TEST_KEY"] = KEY
    try:
        assert run.main(arguments(base, served)) == 0
    finally:
        os.chdir(here)
        if before is None:
            del os.environ["JOB_TEST_KEY"]
    return base, served


@pytest.fixture
def at_home(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JOB_TEST_KEY", KEY)


def missing_rows(base):
    return [json.loads(line) for line in (base / "run/missing.jsonl").read_text().splitlines()]


def test_failed_calls_are_missing_and_never_wrong(done):
    """F03: accuracy is over the answered, with coverage beside it; a busy expert is not wrong."""
    base, _ = done
    rows = missing_rows(base)
    assert {(r["seat"], r["state"]) for r in rows} == {("B3", "failed")}
    assert all("HTTP 503" in r["message"] for r in rows)
    results = json.loads((base / "run/results.json").read_text())
    held = sum(r["split"] == "heldout" for r in rows)
    counts = results["notes"]["outcomes"]["B3"]
    assert 0 < held < 12 and counts["missing"] == held
    assert results["notes"]["missing"] == {"B3": {"failed": held}}
    entry = results["systems"]["single:B3"]
    answered = 12 - held
    assert entry["coverage"] == pytest.approx(answered / 12)
    assert entry["accuracy"] == pytest.approx(counts["right"] / answered)
    if counts["right"]:
        assert entry["accuracy"] != pytest.approx(counts["right"] / 12)  # what F03 would report


def test_costs_are_reported(done):
    notes = json.loads((done[0] / "run/results.json").read_text())["notes"]
    money = notes["money_per_question"]
    assert 0 <= money["grade"] <= money["everyone"] and money["single:B3"] > 0
    assert notes["unknown_active_params"] == []


def test_the_key_is_in_no_file(done):
    files = [p for p in done[0].rglob("*") if p.is_file()]
    assert len(files) > 8
    assert not [p for p in files if KEY.encode() in p.read_bytes()]
    assert "JOB_TEST_KEY" in (done[0] / "run/config.json").read_text()


def ask_again(base, server):
    """Ask the run's questions of the run's store: (frozen, train, heldout)."""
    _, overrides, _ = config_lib.parse_args(arguments(base, server))
    config = config_lib.to_dict(config_lib.load(CONFIG, overrides))
    settings, frozen = run.open_pool(build(config))
    return frozen, *run.ask_pool(settings, frozen, Console(quiet=True))


def test_the_next_run_asks_only_what_was_missing(done, at_home):
    base, server = done
    rows, before = missing_rows(base), len(server.questions)
    server.down = False
    frozen, train, heldout = ask_again(base, server)
    assert frozen.api.budget.calls == len(server.questions) - before == len(rows)
    assert len(set(server.questions)) == len(server.questions) == 36  # each once in all
    assert train.failed == heldout.failed == ()
    column = frozen.registry.names.index("B3")
    assert heldout.records.available[:, column].all()
    assert (heldout.money[:, column] > 0).all() and heldout.money.sum() == pytest.approx(
        heldout.money[:, column].sum())


def test_greedy_replies_are_those_of_the_local_model(done, at_home):
    base, server = done
    server.down = False
    _, _, heldout = ask_again(base, server)
    entries = config_lib.to_dict(config_lib.load(CONFIG.with_name("grade_tiny.py"), ()))["pool"]
    local = asking.open_frozen(registry_of(entries), FeatureStore(base / "local"), batch_size=32)
    query = [asking.messages_of(e, ReasoningGymTask) for e in heldout.examples]
    requests = [asking.Request("B3", q.id, q.expert) for q in query]
    column = local.registry.names.index("B3")
    said = [r.text for r in asking.ask_seats(local, requests)]
    assert said == list(heldout.replies[column])


def test_the_message_is_the_trunks_embedding_of_the_reply(done, at_home):
    frozen, _, heldout = ask_again(*done)
    column = frozen.registry.names.index("B3")
    features = heldout.records.features[column]
    assert features.shape == (12, frozen.pool().trunk_width) == (12, frozen.pool().widths[column])
    for i, text in enumerate(heldout.replies[column]):
        if text is not None:
            np.testing.assert_array_equal(features[i], asking.text_embeddings(frozen, [text])[0])
    assert len(np.unique(features, axis=0)) > 3
    assert frozen.pool().params[column] == 885888  # declared; the local model has as many


def test_a_long_text_is_read_in_windows(done, at_home):
    frozen, _, _ = ask_again(*done)
    context = frozen.trunk.model.config.max_positions
    chat = frozen.chat
    text = "12 + 34 = 46. " * context
    ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 2 * context
    (got,) = asking.text_embeddings(frozen, [text])
    parts = [ids[i : i + context] for i in range(0, len(ids), context)]
    states = np.concatenate(states_below(frozen.trunk.model, frozen.trunk.params, parts))
    np.testing.assert_allclose(got, states.mean(0), atol=1e-6)


def test_a_restored_system_answers_through_the_api(done, at_home):
    base, server = done
    server.down = False
    system = gradejax.restore(base / "run")
    assert system.frozen.registry["B3"].api.base_url == server.address
    # Only B3 may be asked: whatever the gates like best, the call goes to the server.
    requests = [asking.Request("B3", "q", [{"role": "user", "content": "Sort: 3, 1, 2"}])]
    (reply,) = asking.ask_seats(system.frozen, requests)
    assert reply.usage.model == "checkpoints/algorithmic"
    assert len(reply.hidden) == system.shape.pool.trunk_width
    answers = system.answer(["Calculate 5 - 3 + 6.", "Sort the numbers 4, 2, 9."])
    assert all(a.trace.asked and a.trace.money >= 0 for a in answers)


def test_patience_may_change_when_a_run_goes_on_but_not_the_server(done, at_home, capsys):
    base, server = done
    server.down = False
    args = arguments(base, server, "--config.mode=evaluate")
    assert run.main([*args, "--config.pool.agents.B3.api.attempts=4",
                     "--config.budget.money=5.0"]) == 0
    assert run.main([*args, "--config.pool.agents.B3.api.base_url=http://127.0.0.1:9/v1"]) == 1
    assert "pool.agents.B3.api.base_url" in capsys.readouterr().out


@pytest.mark.parametrize(("extra", "words"), [
    (["--config.pool.agents.B3.api.key_variable=NO_SUCH_KEY_SET"], ["NO_SUCH_KEY_SET", "not set"]),
    (["--config.pool.agents.B3.api.base_url=localhost"], ["B3", "base_url", "localhost"]),
    (["--config.budget.money=-1.0"], ["config.budget", "money", "-1"]),
])
def test_user_errors(done, tmp_path, at_home, capsys, extra, words):
    assert run.main(arguments(tmp_path, done[1], *extra)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for word in words), said


def test_unknown_parameters_are_said_aloud(done, at_home):
    _, overrides, _ = config_lib.parse_args(arguments(*done))
    entries = config_lib.to_dict(config_lib.load(CONFIG, overrides))["pool"]
    del entries["agents"]["B3"]["api"]["active_params"]
    with pytest.warns(UserWarning, match="'B3': the active parameters of .* are unknown"):
        frozen = asking.open_frozen(registry_of(entries), None)
    assert frozen.pool().params[5] == 0
