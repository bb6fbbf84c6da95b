"""The BERT encoder against torch's own hidden states on a committed random checkpoint.

Made by tests/fixtures/make_bert_fixtures.py with torch transformers.
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gradejax.models.bert import bert_config, mean_pooled
from gradejax.models.bert_weights import load_bert

ROOT = pathlib.Path(__file__).parents[1] / "fixtures" / "bert"


@pytest.fixture(scope="module")
def loaded():
    return load_bert(ROOT)


@pytest.fixture(scope="module")
def want():
    with np.load(ROOT / "expected.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def folder(tmp_path):
    return pathlib.Path(shutil.copytree(ROOT, tmp_path / "bert"))


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_every_layer_matches_torch_padded(loaded, want):
    real = want["mask"]
    assert (~real).sum(1).tolist() == [0, 3, 12]
    states = np.asarray(jax.jit(loaded.model.apply)(loaded.params, want["tokens"], real))
    assert states.shape == want["hidden"].shape == (4, 3, 19, 24)
    np.testing.assert_allclose(states[:, real], want["hidden"][:, real], atol=1e-5, rtol=0)


def test_unpadded_matches_torch(loaded, want):
    row = want["tokens"][1:2, :16]
    states = np.asarray(loaded.model.apply(loaded.params, row, np.ones_like(row, bool)))
    np.testing.assert_allclose(states[:, 0], want["solo"], atol=1e-5, rtol=0)


def test_what_stands_in_padding_is_inert(loaded, want):
    real = want["mask"]
    apply = jax.jit(loaded.model.apply)
    noise = np.where(real, want["tokens"], 13)
    plain, noisy = (np.asarray(apply(loaded.params, t, real)) for t in (want["tokens"], noise))
    np.testing.assert_array_equal(plain[:, real], noisy[:, real])
    empty = np.asarray(apply(loaded.params, want["tokens"], np.zeros_like(real)))
    assert np.isfinite(empty).all()


def test_half_precision_is_near(loaded, want):
    half = load_bert(ROOT, jnp.bfloat16)
    assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype(jnp.bfloat16)}
    real = want["mask"]
    states = np.asarray(half.model.apply(half.params, want["tokens"], real)[-1], np.float32)
    # LayerNorm keeps states near 1; three blocks of bfloat16 (2^-8) stay within a few hundredths.
    assert np.abs(states - want["hidden"][-1])[real].mean() < 0.05


def test_mean_is_over_real_tokens():
    """Rows (1, 3 | pad 100): the mean is 2; with the pad counted it would be 34.67."""
    hidden = jnp.array([[[1.0, 0.0], [3.0, 0.0], [100.0, 0.0]]])
    mask = jnp.array([[True, True, False]])
    np.testing.assert_allclose(mean_pooled(hidden, mask, normalise=False), [[2.0, 0.0]])
    np.testing.assert_allclose(mean_pooled(hidden, mask, normalise=True), [[1.0, 0.0]])
    np.testing.assert_array_equal(mean_pooled(hidden, mask & False, normalise=True), [[0.0, 0.0]])


def test_facts(loaded):
    weights = load_file(ROOT / "model.safetensors")
    used = sum(w.size for n, w in weights.items() if not n.startswith("pooler"))
    assert loaded.n_params == used
    assert any(n.startswith("pooler") for n in weights)  # carried unused (D04)
    assert loaded.commit is None and loaded.path == str(ROOT)


def test_linear_weights_are_transposed(loaded):
    """A square matrix too, where a shape check would not notice (D02)."""
    theirs = load_file(ROOT / "model.safetensors")["encoder.layer.1.attention.self.query.weight"]
    ours = np.asarray(loaded.params["params"]["layers_1"]["q"]["kernel"])
    np.testing.assert_array_equal(ours, theirs.T)
    assert not np.array_equal(ours, theirs)


def test_older_names(folder, loaded):
    """The prefix of the classes with heads, gamma and beta, the position buffer."""

    def change(tensors):
        for name in list(tensors):
            new = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[f"bert.{new.replace('LayerNorm.bias', 'LayerNorm.beta')}"] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
        tensors["cls.predictions.bias"] = np.zeros(97, np.float32)

    rewrite(folder, change)
    jax.tree.map(np.testing.assert_array_equal, load_bert(folder).params, loaded.params)


def test_loading_is_strict(folder):
    name = "encoder.layer.2.output.dense.weight"
    keep = load_file(folder / "model.safetensors")
    rewrite(folder, lambda t: t.pop(name))
    with pytest.raises(ValueError, match=f"missing tensors: {name}"):
        load_bert(folder)
    save_file(keep | {"encoder.layer.3.output.dense.bias": np.zeros(24, np.float32)},
              folder / "model.safetensors")  # fmt: skip
    with pytest.raises(ValueError, match=r"no parameter wants: encoder.layer.3.output.dense.bias"):
        load_bert(folder)
    save_file(keep | {name: np.zeros((41, 24), np.float32)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"{name}.*\(41, 24\).*\(24, 41\)"):
        load_bert(folder)
    save_file(keep | {f"bert.{name}": keep[name]}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"'{name}' stands in .* twice"):
        load_bert(folder)
    for value, dtype, message in ((np.nan, "float32", "1 values that are not finite numbers"),
                                  (7e4, "float16", "up to 70000, which float16")):  # fmt: skip
        save_file(keep | {name: np.full_like(keep[name], 0)}, folder / "model.safetensors")
        rewrite(folder, lambda t, v=value: t[name].__setitem__((1, 2), v))
        with pytest.raises(ValueError, match=f"'{name}' of .* holds .*{message}"):
            load_bert(folder, dtype)
    (folder / "model.safetensors").write_bytes((ROOT / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ValueError, match="torn or not a safetensors file"):
        load_bert(folder)


def test_too_long_is_an_error(loaded):
    tokens = np.ones((1, 41), np.int32)
    with pytest.raises(ValueError, match="41 tokens; the encoder reads at most 40"):
        loaded.model.apply(loaded.params, tokens, tokens > 0)


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"model_type": "llama"}, r"'llama'.*supported: bert"),
        ({"hidden_act": "swish"}, "hidden_act 'swish'; supported: gelu"),
        ({"position_embedding_type": "relative_key"}, "relative_key.*supported: absolute"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "hidden_size=24 must be a multiple of num_attention_heads=5"),
        ({"vocab_size": ...}, "lacks vocab_size"),
    ],
)
def test_unsupported_configs(entry, message):
    raw = json.loads((ROOT / "config.json").read_text()) | entry
    with pytest.raises(ValueError, match=message):
        bert_config({k: v for k, v in raw.items() if v is not ...})


def to_flax(tensors):
    """Flax names and axes of Hugging Face's FlaxBert classes, nested."""
    tree = {}
    for name, value in tensors.items():
        *stem, leaf = name.split(".")
        if leaf == "weight":
            leaf = ("scale" if "LayerNorm" in name else
                    "embedding" if "embeddings" in name else "kernel")  # fmt: skip
        node = tree
        for part in stem:
            node = node.setdefault(part, {})
        node[leaf] = np.ascontiguousarray(value.T) if leaf == "kernel" else value
    return tree


def test_flax_msgpack_holds_the_same_encoder(folder, loaded):
    from flax.serialization import msgpack_serialize

    tree = to_flax(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    (folder / "flax_model.msgpack").write_bytes(msgpack_serialize({"bert": tree}))
    jax.tree.map(np.testing.assert_array_equal, load_bert(folder).params, loaded.params)
