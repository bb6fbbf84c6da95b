"""Micro-batches change memory and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.generation.microbatch import value_and_grad_by_rows


def loss(trained, batch):
    out = jnp.tanh(batch["x"] @ trained["w"]) * batch["weight"][:, None]
    return out.sum(), {"row": out.sum(1)}


@pytest.fixture
def case():
    keys = jax.random.split(jax.random.key(0), 3)
    batch = {"x": jax.random.normal(keys[0], (7, 5)), "weight": jax.random.normal(keys[1], (7,))}
    return {"w": jax.random.normal(keys[2], (5, 3))}, batch


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 50])
def test_any_number_of_rows_at_once_is_the_same(case, rows):
    """T22: 7 rows as 1·7, 2·3 + 1, 3·2 + 1, 7 and 7 of 50; a mean of means would differ."""
    (value, aux), grad = jax.jit(value_and_grad_by_rows(loss, rows))(*case)
    (want, want_aux), want_grad = jax.value_and_grad(loss, has_aux=True)(*case)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(aux["row"], want_aux["row"], atol=1e-6)
    np.testing.assert_allclose(grad["w"], want_grad["w"], atol=1e-5)


def test_memory_is_that_of_a_few_rows():
    """64 rows of [512, 512] states in float32 are 67 MB; four at once 4.2 MB a layer."""

    def deep(trained, batch):
        x = batch
        for _ in range(4):
            x = jnp.tanh(x @ trained)
        return x.sum(), None

    kinds = jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct(
        (64, 512, 512), jnp.float32)  # fmt: skip
    run = lambda rows: jax.jit(value_and_grad_by_rows(deep, rows)).lower(  # noqa: E731
        *kinds).compile().memory_analysis().temp_size_in_bytes  # fmt: skip
    assert run(64) > 4 * 67e6 > 6 * run(4)


def test_bad_calls(case):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        value_and_grad_by_rows(loss, 0)
    with pytest.raises(ValueError, match=r"\[6, 7\]"):
        value_and_grad_by_rows(loss, 2)(case[0], case[1] | {"weight": jnp.ones(6)})
