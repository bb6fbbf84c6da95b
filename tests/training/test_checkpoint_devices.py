"""C01: what was saved on four devices is read on one, two or four, and without any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gradejax.training.checkpoint import Checkpoints

VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)


def over(n):
    mesh = Mesh(np.array(jax.devices()[:n]), ("data",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("data", None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("four")
    checkpoints = Checkpoints(path)
    checkpoints.save(7, {"w": jax.device_put(VALUE, over(4))})
    checkpoints.close()
    return path


@pytest.mark.parametrize("n, rows", [(1, 8), (2, 4), (4, 2)])
def test_read_on_another_number_of_devices(folder, n, rows):
    checkpoints = Checkpoints(folder)
    target = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=over(n))}
    got = checkpoints.restore(target)["w"]
    checkpoints.close()
    assert [s.data.shape[0] for s in got.addressable_shards] == [rows] * n
    np.testing.assert_array_equal(got, VALUE)
    assert float(got.sum()) == 496 and got[5].tolist() == [20, 21, 22, 23]


def test_read_into_plain_arrays(folder):
    """A target on one device, as evaluation makes it: the saved mesh is not rebuilt."""
    checkpoints = Checkpoints(folder)
    got = checkpoints.restore({"w": jnp.zeros((8, 4))})["w"]
    checkpoints.close()
    assert len(got.devices()) == 1
    np.testing.assert_array_equal(got, VALUE)
