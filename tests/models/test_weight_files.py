"""safetensors read by stretches of rows are what the library reads at once."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

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
