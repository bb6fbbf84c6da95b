"""The parity check finds a difference, says in which layer, and fails; its own side is right."""

import importlib.util
import json

import numpy as np
import pytest
from hf_folders import ROOT, checkpoint, expected

from experiments import check_parity

run = check_parity.main


def said(arguments, capsys) -> str:
    """The one line of a call that cannot compare."""
    assert run(arguments) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return error


@pytest.fixture
def torch_is_us(monkeypatch):
    """torch's side is ours, plus what a test adds: {state: number}."""
    added = {}

    def states(path, tokens, mask):
        found = check_parity.our_states(checkpoint(path.name), tokens, mask)
        return [x + np.float32(added.get(i, 0)) for i, x in enumerate(found)]

    monkeypatch.setattr(check_parity, "torch_states", states)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return added


@pytest.mark.parametrize("name", ["gpt2", "llama_sharded"])
def test_our_side_is_torchs_on_a_fixture(name):
    """Hidden states from layer to layer end in the recorded ones."""
    want = expected(name)
    found = check_parity.our_states(checkpoint(name), want["tokens"], want["mask"])
    assert len(found) == checkpoint(name).config.num_layers + 2
    real = want["mask"]
    np.testing.assert_allclose(found[-2][real], want["hidden"][real], atol=3e-5, rtol=0)
    np.testing.assert_allclose(found[-1][real], want["logits"][real], atol=3e-5, rtol=0)
    ckpt = checkpoint(name)
    for i in range(2):  # the states between are those that the decoder gives when asked for one
        one = ckpt.model.apply(ckpt.params, want["tokens"], real, layer=i, method="hidden")
        np.testing.assert_allclose(found[i][real], np.asarray(one)[real], atol=1e-5)


def test_equal_models_pass(torch_is_us, capsys):
    assert run(["--model", str(ROOT / "qwen2")]) == 0
    table, line = capsys.readouterr().out.rstrip().rsplit("\n", 1)
    result = json.loads(line)
    assert result["passed"] and result["worst"] < 1e-4 and result["family"] == "qwen2"
    assert [row.split("  ")[0] for row in table.split("\n")[1:]] == [
        "embeddings", "layer 1", "final norm", "logits",
    ]  # fmt: skip


def test_the_layer_that_differs_is_named(torch_is_us, capsys):
    torch_is_us[1] = 0.5
    assert run(["--model", str(ROOT / "qwen2")]) == 1
    lines = capsys.readouterr().out.splitlines()
    flagged = [line for line in lines if "above the tolerance" in line]
    assert len(flagged) == 1 and flagged[0].startswith("layer 1")
    assert not json.loads(lines[-1])["passed"]
    torch_is_us.clear()
    torch_is_us[3] = float("nan")
    assert run(["--model", str(ROOT / "qwen2")]) == 1


def test_differences_by_hand():
    """|1 - 1.5| over max(1, 1.5) = 1/3; the pad's 100 does not count; small values are absolute."""
    mask = np.array([[True, False]])
    ours, theirs = np.array([[[1.0], [100.0]]]), np.array([[[1.5], [0.0]]])
    assert check_parity.differences([ours], [theirs], mask) == pytest.approx([1 / 3])
    assert check_parity.differences([ours * 0.1], [theirs * 0.1], mask) == pytest.approx([0.05])
    with pytest.raises(ValueError, match="1 states here, 2 in transformers"):
        check_parity.differences([ours], [theirs, theirs], mask)


def test_padded_batch():
    tokens, mask = check_parity.batch([5, 6, 7])
    assert tokens.shape == mask.shape == (3, 19)
    assert (~mask).sum(1).tolist() == [0, 3, 16] and mask[:, -1].all()
    assert tokens[2].tolist() == [0] * 16 + [5, 6, 7] and tokens[0, :4].tolist() == [5, 6, 7, 5]


def test_without_torch(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    error = said(["--model", str(ROOT / "qwen2")], capsys)
    assert "torch cannot be imported here. Install" in error


@pytest.mark.parametrize("arguments, words", [
    (["--text", "hello"], "has no tokenizer; leave --text out"),
    (["--model", "no/such/folder"], "no/such/folder"), (["--model", ""], "''"),
    (["--length", "0"], "--length must be a whole number of at least 1, got 0"),
    (["--length", "-3"], "--length must be a whole number of at least 1, got -3"),
    (["--length", "10000000000"], "--length must be at most 240, got 10000000000: the batch"),
    (["--tolerance", "nan"], "--tolerance must be a number >= 0, got nan"),
    (["--tolerance", "-1"], "--tolerance must be a number >= 0, got -1"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(arguments, words, torch_is_us, capsys):
    assert words in said(["--model", str(ROOT / "qwen2"), *arguments], capsys)


def test_texts_that_cannot_be_compared():
    folder = ROOT.parents[2] / "checkpoints" / "arithmetic"
    assert len(check_parity.example_ids(folder, 768, 24, "1 + 2 =")) > 3
    for words, error in (("", "has no tokens"), ("7 9", "embedding holds 0 to 9"),
                         ("\udcff", "lone surrogate")):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            check_parity.example_ids(folder, 10, 24, words)
