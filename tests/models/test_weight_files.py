"""safetensors read by stretches of rows are what the library reads at once."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from hf_folders import ROOT
from safetensors.numpy import save_file

from gradejax.models.hf_weights import load_checkpoint
from gradejax.models.lazy import LazyTensor
from gradejax.models.weight_files import check_names, check_shape, open_weights


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_stretches_of_rows(dtype, tmp_path):
    arrays = {"a": np.arange(77).reshape(11, 7).astype(dtype), "b": np.arange(5).astype(dtype)}
    save_file(arrays, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    assert weights.files == (tmp_path / "model.safetensors",)
    for name, want in arrays.items():
        tensor = weights.tensors[name]
        assert tensor.shape == want.shape and tensor().dtype == dtype
        np.testing.assert_array_equal(tensor(), want)
        np.testing.assert_array_equal(tensor.read(2, 5), want[2:5])


def test_names_and_shapes_are_strict():
    check_names({"a"}, {"a", "b.buffer"}, lambda n: n.endswith("buffer"), "x")
    with pytest.raises(ValueError, match=r"x:\n  missing tensors: a\n  .*wants: b"):
        check_names({"a"}, {"b"}, lambda n: False, "x")
    many = {f"t{i:02d}" for i in range(12)}
    with pytest.raises(ValueError, match="t09 and 2 more"):
        check_names(many, set(), lambda n: False, "x")
    with pytest.raises(ValueError, match=r"'a' of x has shape \(2, 3\); its config .* \(3, 2\)"):
        check_shape("a", LazyTensor((2, 3), lambda *_: None), (3, 2), "x")


def test_a_dtype_that_is_not_read_is_named(tmp_path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    data = len(header).to_bytes(8, "little") + header + b"1234"
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="'a' .* is stored as F8_E4M3; supported: F64, F32"):
        open_weights(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json",
                                  "flax_model.msgpack", "config.json",
                                  "generation_config.json"])  # fmt: skip
def test_a_folder_where_a_file_should_be(tmp_path, name):
    folder = shutil.copytree(ROOT / "qwen2", tmp_path / "m")
    if name == "flax_model.msgpack":
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} is a folder; expected a file of that name"):
        load_checkpoint(folder)


def test_a_folder_that_is_no_model(tmp_path):
    """Named as a GGUF file, or holding one: the message says what is meant."""
    (tmp_path / "x.gguf").mkdir()
    with pytest.raises(FileNotFoundError, match="x.gguf/config.json does not exist; .* or a .gguf"):
        load_checkpoint(tmp_path / "x.gguf")
    (tmp_path / "x.gguf" / "inner.Q8_0.gguf").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="to read inner.Q8_0.gguf, give the file's"):
        load_checkpoint(tmp_path / "x.gguf")
    save_file({"a": np.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(FileNotFoundError, match="model-00001-of-00002.safetensors is not named by"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "files, error, message",
    [
        (["../m.safetensors"], ValueError, r"own folder; got '\.\./m.safetensors'"),
        (["/etc/passwd"], ValueError, "own folder; got '/etc/passwd'"),
        (["a/../../m.safetensors", "x"], ValueError, "own folder; got 'a/"),
        (["y", "x"], FileNotFoundError, "lacks 2 of the 2 files that .*index.json names: x, y;"),
        (["in/m.safetensors"], None, None),
    ],
)
def test_an_index_names_files_of_its_folder(tmp_path, files, error, message):
    folder = tmp_path / "m"
    (folder / "in").mkdir(parents=True)
    for at in (tmp_path, folder / "in"):
        save_file({"t0": np.ones(1)}, at / "m.safetensors")
    weight_map = {f"t{i}": f for i, f in enumerate(files)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    if error is None:
        assert open_weights(folder).tensors["t0"]() == 1
    else:
        with pytest.raises(error, match=message):
            open_weights(folder)
