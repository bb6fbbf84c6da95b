"""A tiny expert behind a real server (transformers serve) says what it says here."""

import os

import pytest

from experiments.bench.api_parity import compare, transformers_server

pytest.importorskip("openai", reason="the extra 'api' (package openai) is not installed")
VARIABLE = "GRADEJAX_TRANSFORMERS"


@pytest.fixture(scope="module")
def url():
    executable = os.environ.get(VARIABLE)
    if not executable or not os.access(executable, os.X_OK):
        pytest.skip(f"{VARIABLE} does not name the `transformers` command of an environment with "
                    "torch and transformers[serving]; it must be another environment, since "
                    "gradejax runs without torch")
    with transformers_server(executable, "checkpoints/algorithmic") as address:
        yield address


def test_greedy_replies_are_those_of_the_local_provider(url):
    got = compare(url, "checkpoints/algorithmic", 12)
    assert got["different"] == []
    for what in ("replies", "same_text", "same_finish", "same_prompt_tokens", "same_tokens"):
        assert got[what] == 12, what
