"""Tensors by stretches: together they are the tensor, whichever way round it is stored."""

import ml_dtypes
import numpy as np
import pytest

from gradejax.models import lazy
from gradejax.models.lazy import LazyTensor, empty, to_device

ARRAY = np.arange(77, dtype=np.float32).reshape(11, 7)


def stored(array=ARRAY):
    return LazyTensor(array.shape, lambda start, stop: array[start:stop])


def gathered(tensor):
    out = np.full(tensor.shape, np.nan)
    for index, piece in tensor.pieces():
        assert np.isnan(out[index]).all() and out[index].shape == piece.shape
        out[index] = piece
    return out


def test_pieces_by_hand(monkeypatch):
    """Rows of 28 bytes by 64 at once: stretches of 2, and the last of 1."""
    monkeypatch.setattr(lazy, "STRETCH", 64)
    found = [index for index, _ in stored().pieces()]
    assert found == [(slice(i, min(i + 2, 11)),) for i in range(0, 11, 2)]
    turned = [index for index, _ in stored().transposed().pieces()]
    assert turned == [(slice(None), *index) for index in found]
    assert [index for index, _ in stored(ARRAY[0]).pieces()] == [(slice(0, 7),)]


@pytest.mark.parametrize("stretch", [1, 64, 10**6])
def test_pieces_make_the_tensor(stretch, monkeypatch):
    monkeypatch.setattr(lazy, "STRETCH", stretch)
    order = np.array([3, 1, 0, 2, 10, 9, 8, 4, 5, 7, 6])
    for tensor, want in (
        (stored(), ARRAY),
        (stored().transposed(), ARRAY.T),
        (stored().transposed().transposed(), ARRAY),
        (stored().minus(1), ARRAY - 1),
        (stored().reordered(order), ARRAY[order]),
        (stored().reordered(order).transposed().minus(2), ARRAY[order].T - 2),
        (stored(np.arange(60.0).reshape(5, 3, 4)), np.arange(60.0).reshape(5, 3, 4)),
    ):
        np.testing.assert_array_equal(tensor(), want)
        np.testing.assert_array_equal(gathered(tensor), want)


def test_columns_cannot_be_reordered():
    with pytest.raises(ValueError, match="only rows that lie together"):
        stored().transposed().reordered(np.arange(7))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_an_empty_array_is_handed_over_without_a_copy(dtype):
    array = empty((300, 70), dtype)
    array[:] = 3
    found = to_device(array)
    assert found.dtype == dtype and found.unsafe_buffer_pointer() == array.ctypes.data
    np.testing.assert_array_equal(np.asarray(found), array)
