"""Named averages (fault A04): three numbers for one batch, none depends on the cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.objectives import aggregation as lib
from gradejax.objectives import surrogates

ADVANTAGES = jnp.array([1.5, -0.5, -0.5, -0.5])
LENGTHS = np.array([2, 5, 1, 4])
MASK = jnp.array(np.arange(8)[None] < LENGTHS[:, None])
# token: −(1.5·2 − .5·5 − .5·1 − .5·4)/12 = 2/12; sequence: −mean(A) = 0; constant: 2/(4·8)
WANT = {"token_mean": 1 / 6, "sequence_mean": 0.0, "constant_length": 0.0625}


def loss(log_ratio, rows, aggregation, denominator):
    return surrogates.token_surrogate(
        log_ratio[rows], ADVANTAGES[rows], MASK[rows], clip_low=0.2, clip_high=0.2,
        aggregation=aggregation, denominator=denominator,
        max_length=8 if aggregation == "constant_length" else None,
    )[0]


@pytest.mark.parametrize("aggregation", lib.AGGREGATIONS)
@pytest.mark.parametrize("size", [4, 2, 1])
def test_a04_value_and_gradient_do_not_depend_on_the_micro_batch(aggregation, size):
    pieces = [slice(i, i + size) for i in range(0, 4, size)]
    denominator = sum(lib.local_count(MASK[rows], aggregation) for rows in pieces)
    assert denominator == (12 if aggregation == "token_mean" else 4)

    def total(log_ratio):
        return sum(loss(log_ratio, rows, aggregation, denominator) for rows in pieces)

    value, gradient = jax.value_and_grad(total)(jnp.zeros((4, 8)))
    np.testing.assert_allclose(value, WANT[aggregation], atol=1e-6)
    whole = jax.grad(lambda x: loss(x, slice(0, 4), aggregation, denominator))(jnp.zeros((4, 8)))
    np.testing.assert_allclose(gradient, whole, atol=1e-7)
    assert (np.asarray(gradient)[~np.asarray(MASK)] == 0).all()


@pytest.mark.parametrize("size, fault", [(2, 0.21428571), (1, 0.0)])
def test_a04_mean_of_means_is_another_number(size, fault):
    pieces = [slice(i, i + size) for i in range(0, 4, size)]
    means = [
        loss(jnp.zeros((4, 8)), rows, "token_mean", lib.local_count(MASK[rows], "token_mean"))
        for rows in pieces
    ]
    np.testing.assert_allclose(np.mean(means), fault, atol=1e-6)
    assert abs(fault - WANT["token_mean"]) > 0.04


@pytest.mark.parametrize("aggregation", lib.AGGREGATIONS)
@pytest.mark.parametrize("devices", [2, 4])
def test_sum_over_devices_with_unequal_counts(aggregation, devices):
    values = jnp.arange(32.0).reshape(4, 8) / 7
    max_length = 8 if aggregation == "constant_length" else None
    denominator = lib.local_count(MASK, aggregation)
    want = lib.aggregate(values, MASK, aggregation=aggregation, denominator=denominator,
                         max_length=max_length)

    def local(values, mask):
        count = jax.lax.psum(lib.local_count(mask, aggregation), "d")
        return jax.lax.psum(
            lib.aggregate(values, mask, aggregation=aggregation, denominator=count,
                          max_length=max_length), "d",
        )

    got = jax.pmap(local, axis_name="d")(
        values.reshape(devices, -1, 8), MASK.reshape(devices, -1, 8)
    )
    np.testing.assert_allclose(got, np.full(devices, want), rtol=1e-6)


@pytest.mark.parametrize("aggregation", lib.AGGREGATIONS)
def test_padding_rows_and_nan_tokens_are_inert(aggregation):
    max_length = 8 if aggregation == "constant_length" else None
    values = jnp.where(MASK, jnp.arange(32.0).reshape(4, 8), jnp.nan)
    padded = jnp.concatenate([values, jnp.full((3, 8), jnp.inf)])
    padded_mask = jnp.concatenate([MASK, jnp.zeros((3, 8), bool)])
    count = lib.local_count(MASK, aggregation)
    assert lib.local_count(padded_mask, aggregation) == count
    want = lib.aggregate(values, MASK, aggregation=aggregation, denominator=count,
                         max_length=max_length)
    got = lib.aggregate(padded, padded_mask, aggregation=aggregation, denominator=count,
                        max_length=max_length)
    assert got == want and np.isfinite(got)


@pytest.mark.parametrize("aggregation", lib.AGGREGATIONS)
def test_nothing_to_average_is_zero(aggregation):
    mask = jnp.zeros((2, 3), bool)
    got = lib.aggregate(jnp.ones((2, 3)), mask, aggregation=aggregation,
                        denominator=lib.local_count(mask, aggregation),
                        max_length=3 if aggregation == "constant_length" else None)
    assert got == 0


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="choose from"):
        lib.local_count(MASK, "mean")
    with pytest.raises(ValueError, match="max_length"):
        lib.aggregate(jnp.zeros((4, 8)), MASK, aggregation="constant_length", denominator=4)
    with pytest.raises(ValueError, match="max_length"):
        lib.aggregate(jnp.zeros((4, 8)), MASK, aggregation="token_mean", denominator=4,
                      max_length=8)
    with pytest.raises(ValueError, match=r"\[N, T\]"):
        lib.aggregate(jnp.zeros((4, 8)), MASK[:, :1], aggregation="token_mean", denominator=4)
