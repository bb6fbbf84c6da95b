"""Value and gradient of a sum over rows, a few rows at a time: the memory is that of a few.

Each micro-batch runs forward and backward before the next begins, so nothing is computed twice;
what is added up is the gradient alone, which for adapters is small. A loss that is no sum over
rows can be made one by dividing by counts taken beforehand (T22).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def value_and_grad_by_rows(loss: Callable[[Any, Any], Any], rows: int) -> Callable[[Any, Any], Any]:
    """The function ``(trained, batch) -> ((value, aux), gradient)``.

    Args:
      loss: ``(trained, batch) -> (sum over the batch's rows, aux)``; aux is a tree of arrays with
        the rows first, or None.
      rows: at once; what a batch leaves over is run by itself.

    Returns:
      A function of the trained tree and a batch (a tree of arrays with B rows first); it gives the
      sum over all rows, aux of all rows in order, and the gradient of the sum.

    Raises:
      ValueError: rows < 1, or a batch whose arrays differ in their number of rows.
    """
    if rows < 1:
        raise ValueError(f"rows at once must be at least 1, got {rows}")
    step = jax.value_and_grad(loss, has_aux=True)

    def run(trained, batch):
        sizes = {x.shape[0] for x in jax.tree.leaves(batch)}
        if len(sizes) != 1:
            raise ValueError(f"expected one number of rows in every array, got {sorted(sizes)}")
        (size,) = sizes
        whole, left = divmod(size, rows)
        pieces = []
        if whole:
            head = jax.tree.map(
                lambda x: x[: whole * rows].reshape(whole, rows, *x.shape[1:]), batch
            )
            kinds = jax.eval_shape(step, trained, jax.tree.map(lambda x: x[0], head))
            start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (kinds[0][0], kinds[1]))

            def add(total, piece):
                (value, aux), grad = step(trained, piece)
                return jax.tree.map(jnp.add, total, (value, grad)), aux

            total, aux = jax.lax.scan(add, start, head)
            aux = jax.tree.map(lambda x: x.reshape(whole * rows, *x.shape[2:]), aux)
            pieces.append((total, aux))
        if left:
            (value, aux), grad = step(trained, jax.tree.map(lambda x: x[whole * rows :], batch))
            pieces.append(((value, grad), aux))
        (value, grad), aux = pieces[0]
        for (more, more_grad), more_aux in pieces[1:]:
            value, grad = value + more, jax.tree.map(jnp.add, grad, more_grad)
            aux = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), aux, more_aux)
        return (value, aux), grad

    return run
