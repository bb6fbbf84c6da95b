"""bench load writes models that load in every format, and reports what it measured."""

import json

import jax
import numpy as np
import pytest

from experiments.bench import load
from gradejax.models.hf_weights import load_checkpoint


@pytest.fixture
def small(monkeypatch):
    sizes = {"vocab_size": 512, "hidden_size": 36, "num_attention_heads": 3,
             "num_key_value_heads": 1, "intermediate_size": 48}  # fmt: skip
    monkeypatch.setattr(load, "SHAPE", load.SHAPE | sizes)


def written(tmp_path, kind, tied):
    folder = tmp_path / f"{kind}_{tied}"
    folder.mkdir()
    return load_checkpoint(load.write_model(folder, kind, 1, tied))


@pytest.mark.parametrize("tied", [True, False])
def test_every_format_holds_the_same_model(small, tied, tmp_path):
    """About a megabyte. The .gguf's q and k are in the file's own order, so they differ."""
    want = written(tmp_path, "safetensors", tied)
    assert abs(want.n_params * 4 / 2**20 - 1) < 0.1 and want.config.tied is tied
    for kind in ("sharded", "msgpack", "gguf"):
        ours = written(tmp_path, kind, tied)
        assert ours.config.tied is tied and ours.n_params == want.n_params
        if kind != "gguf":
            jax.tree.map(np.testing.assert_array_equal, ours.params, want.params)


def test_the_front_reports_and_judges(small, capsys):
    """At a megabyte the interpreter's own growth is above any ratio, so the status is 1."""
    with pytest.raises(SystemExit) as stopped:
        load.main(["--format", "sharded", "--untied", "--dtype", "bfloat16", "--megabytes", "1"])
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert "above the wanted 1.2; below 100 MB what loading itself needs outweighs" in said.err
    assert result["bench"] == "load" and result["format"] == "sharded" and not result["tied"]
    assert 0.4 < result["model_mb"] < 0.6  # half of a megabyte of float32
    assert result["peak_growth_mb"] > 0 and result["seconds"] > 0
    assert stopped.value.code == int(result["ratio"] > result["wanted"]) == 1


def test_a_model_that_is_not_there_is_said(capfd):
    with pytest.raises(SystemExit) as stopped:
        load.main(["--folder", "no/such"])
    said = capfd.readouterr().err
    assert stopped.value.code == 1 and said.startswith("error: ") and "Traceback" not in said
