"""Flax checkpoints read lazily are what flax's own reader gives, under torch's names."""

import pathlib
import shutil

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.serialization import msgpack_restore, msgpack_serialize
from flax.traverse_util import flatten_dict, unflatten_dict
from hf_folders import ROOT, checkpoint
from safetensors.numpy import load_file

from gradejax.models.flax_msgpack import read_flax_msgpack
from gradejax.models.hf_weights import load_checkpoint


def written(tmp_path, tree):
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(msgpack_serialize(tree))
    return path


@pytest.mark.parametrize("name, count", [("gpt2", 40), ("llama", 30)])
def test_written_by_hugging_faces_flax_classes(name, count, shared):
    path = pathlib.Path(shared) / "fixtures" / "hf_flax" / name / "flax_model.msgpack"
    ours = read_flax_msgpack(path)
    want = flatten_dict(msgpack_restore(path.read_bytes()), sep=".")
    assert len(ours) == len(want) == count
    for key, array in want.items():
        stem, _, leaf = key.rpartition(".")
        torchs = {"kernel": "weight", "embedding": "weight", "scale": "weight"}.get(leaf, leaf)
        tensor = ours[f"{stem}.{torchs}"]
        array = array.T if leaf == "kernel" else array
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor(), array)
        part = array[:, 3:7] if tensor.axis else array[3:7]
        np.testing.assert_array_equal(tensor.read(3, 7), part)
        assert tensor.axis == (leaf == "kernel")


def flax_tree(name):
    """A committed checkpoint as Hugging Face's Flax class of its family would hold it."""
    flat = {}
    for key, value in load_file(ROOT / name / "model.safetensors").items():
        stem, _, leaf = key.rpartition(".")
        if leaf == "weight" and value.ndim == 2:
            leaf = "embedding" if stem.endswith(("embed_tokens", "wte", "wpe")) else "kernel"
        elif leaf == "weight" and name == "gpt2":
            leaf = "scale"  # of flax's LayerNorm; the RMS norms call it weight
        flat[f"{stem}.{leaf}"] = np.ascontiguousarray(value.T) if leaf == "kernel" else value
    return unflatten_dict(flat, sep=".")


@pytest.mark.parametrize("name", ["gemma", "gpt2", "llama", "mistral"])
def test_families_of_the_flax_classes(name, tmp_path):
    shutil.copy(ROOT / name / "config.json", tmp_path)
    written(tmp_path, flax_tree(name))
    ours = load_checkpoint(tmp_path)
    assert ours.config == checkpoint(name).config
    jax.tree.map(np.testing.assert_array_equal, ours.params, checkpoint(name).params)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_logits_of_hugging_faces_flax_classes(name, shared):
    folder = pathlib.Path(shared) / "fixtures" / "hf_flax" / name
    ours = load_checkpoint(folder)
    with np.load(folder / "expected.npz", allow_pickle=False) as want:
        real = want["attention_mask"].astype(bool)
        assert (~real).any()
        out = jax.jit(ours.model.apply)(ours.params, jnp.asarray(want["input_ids"]), real)
        for got, key in ((out.logits, "logits"), (out.hidden, "last_hidden")):
            np.testing.assert_allclose(np.asarray(got)[real], want[key][real], atol=1e-4, rtol=0)


def test_kernels_by_hand(tmp_path):
    """D02. torch's Linear [[1, 2], [3, 4]] gives 21, 43 for (1, 10); its kernel is transposed.

    gpt2's Flax Conv1D keeps (out, in) too, so torch's (in, out) weight is its transpose as well:
    31, 42. Left as they stand both would give the other's numbers.
    """
    tree = {
        "linear": {"kernel": np.array([[1.0, 3.0], [2.0, 4.0]])},
        "c_attn": {"kernel": np.array([[1.0, 3.0], [2.0, 4.0]]), "bias": np.zeros(2)},
        "wte": {"embedding": np.array([[1.0, 2.0], [3.0, 4.0]])},
        "ln": {"scale": np.array([5.0, 6.0])},
    }
    found = read_flax_msgpack(written(tmp_path, tree))
    assert found.keys() == {"linear.weight", "c_attn.weight", "c_attn.bias", "wte.weight",
                            "ln.weight"}  # fmt: skip
    x = np.array([1.0, 10.0])
    assert (found["linear.weight"]() @ x).tolist() == [21, 43]  # torch: W x
    assert (x @ found["c_attn.weight"]()).tolist() == [31, 42]  # torch's Conv1D: x W
    assert found["wte.weight"]().tolist() == [[1, 2], [3, 4]]
    assert found["ln.weight"]().tolist() == [5, 6]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_dtypes_and_the_outer_params(dtype, tmp_path):
    array = np.arange(35).reshape(5, 7).astype(dtype)
    found = read_flax_msgpack(written(tmp_path, {"params": {"a": {"embedding": array}}}))
    got = found["a.weight"]()
    assert got.dtype == dtype and list(found) == ["a.weight"]
    np.testing.assert_array_equal(got, array)


def test_arrays_in_pieces(tmp_path, monkeypatch):
    """flax cuts arrays past a gigabyte into flat pieces; here past 100 bytes."""
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    array = np.arange(77, dtype=np.float32).reshape(11, 7)
    path = written(tmp_path, {"a": {"kernel": array, "bias": np.ones(3)}, "b": {"scale": array[0]}})
    assert b"__msgpack_chunked_array__" in path.read_bytes()
    found = read_flax_msgpack(path)
    assert found.keys() == {"a.weight", "a.bias", "b.weight"}
    np.testing.assert_array_equal(found["a.weight"](), array.T)
    np.testing.assert_array_equal(found["a.weight"].read(2, 5), array.T[:, 2:5])
    np.testing.assert_array_equal(found["b.weight"](), array[0])


def test_long_names_and_many_entries(tmp_path):
    """Maps and strings past the short forms of msgpack."""
    tree = {"x" * 300: {str(i): {"bias": np.full(2, i)} for i in range(70)}}
    found = read_flax_msgpack(written(tmp_path, tree))
    assert len(found) == 70 and found[f"{'x' * 300}.69.bias"]().tolist() == [69, 69]


def test_every_cut_is_noticed(tmp_path):
    tree = {"a": {"kernel": np.ones((3, 5), np.float32)}, "b": {"bias": np.zeros(4)}}
    path = written(tmp_path, tree)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="torn or not a Flax checkpoint"):
            read_flax_msgpack(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="1 bytes follow the tree"):
        read_flax_msgpack(path)


@pytest.mark.parametrize(
    "tree, message",
    [
        ({"a": {"bias": 3}}, "neither a map nor an array"),
        ({"a": {"bias": np.float32(3)}}, "is no array|neither"),
        ({"a": {"bias": np.zeros(())}}, "a number stands where an array should"),
    ],
)
def test_foreign_trees(tree, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_flax_msgpack(written(tmp_path, tree))


def test_two_leaves_of_one_name(tmp_path):
    tree = {"norm": {"weight": np.ones(3), "scale": np.ones(3)}}
    with pytest.raises(ValueError, match=r"'norm.weight' stands in .* twice, as '(weight|scale)'"):
        read_flax_msgpack(written(tmp_path, tree))


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"flax_model\.msgpack does not exist"):
        read_flax_msgpack(tmp_path / "flax_model.msgpack")


def test_jax_arrays_are_read_as_well(tmp_path):
    found = read_flax_msgpack(written(tmp_path, {"a": {"bias": jnp.arange(3.0)}}))
    assert found["a.bias"]().tolist() == [0, 1, 2]
