"""One device and four: the same training, whatever the cut, and the cut that would be wrong."""

import functools

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_grade as small

from gradejax.coordination import calibration as calibration_lib
from gradejax.models.encoder import pack_trunk
from gradejax.systems.grade import policy
from gradejax.systems.grade.learner import StepInput, train_step
from gradejax.systems.grade.network import question
from gradejax.systems.grade.objective import Counts, loss
from gradejax.systems.questions import pad_records, split_batch, unpack_trunk
from gradejax.training import parallel
from gradejax.types import Batch

DEVICES, STEPS, REAL = 4, 20, 10  # ten questions over four devices: two rows are padding
SHARE_ROWS = 3


@pytest.fixture
def compiled_fast():
    """pmap takes no compiler options; the switch is for all of them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def as_type(tree, dtype):
    return jax.tree.map(
        lambda x: x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x, tree
    )


def uneven(seed, dtype):
    batch = fakes.batch(REAL, seed=seed, ids=np.arange(REAL) + 100 * seed, missing=0.1,
                        rows=small.ROWS, row_length=small.LENGTH)  # fmt: skip
    extra = -REAL % DEVICES
    states = unpack_trunk(batch.trunk) + [np.zeros((0, 16), np.float32)] * extra
    trunk = pack_trunk(states, small.ROWS, small.LENGTH)
    return as_type(Batch(pad_records(batch.records, extra), trunk), dtype)


def cut(batch, reference, dtype):
    shares = split_batch(batch, DEVICES, SHARE_ROWS, small.LENGTH)
    return StepInput(
        as_type(shares, dtype),
        jax.tree.map(lambda x: np.asarray(x).reshape(DEVICES, -1, *x.shape[1:]), reference),
    )


@functools.cache
def logits_of(shape):
    def run(tree, batch, memory, calibration):
        return question(shape, tree, batch, memory, calibration, own_slots=False).logits

    return small.quick(run)


def trained(dtype, rate):
    """(state of one device, of four, metrics of the last step of both)."""
    shape = fakes.shape(dtype=dtype, learning_rate=rate)
    calibration = calibration_lib.identity(small.N, shape.config.d, dtype)
    tree = as_type(small.params(), dtype)
    batches = [uneven(seed, dtype) for seed in range(STEPS)]
    references = [
        logits_of(shape)(tree, b, small.empty_memory(shape), calibration) for b in batches
    ]
    assert jax.tree.leaves(references[0])[0].dtype == dtype
    step = functools.partial(train_step, shape)
    one = small.state(tree=tree, shape=shape)
    run = jax.jit(step, donate_argnums=0)  # compiled as pmap is: another way rounds otherwise
    for batch, reference in zip(batches, references, strict=True):
        one, metrics = run(one, StepInput(batch, reference))
    many = parallel.replicate(small.state(tree=tree, shape=shape))
    run = parallel.pmap_step(step)
    for batch, reference in zip(batches, references, strict=True):
        many, cut_metrics = run(many, cut(batch, reference, dtype))
    for leaf in jax.tree.leaves(many.params):
        assert len(leaf.sharding.device_set) == DEVICES and (leaf == leaf[:1]).all()
    return jax.device_get((one, parallel.unreplicate(many), metrics, cut_metrics))


def largest(a, b):
    return max(
        float(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)).max())
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def without_key_biases(params):
    """A bias of the keys adds nearly the same to every score of a query, which the softmax does not
    see: its gradient is rounding, which Adam makes as large as any other."""

    def cut(path, x):
        bias = jax.tree_util.keystr(path).endswith("['attn']['qkv']['bias']")
        return np.delete(x, -2, axis=1) if bias else x  # [K, R queries + key + value, H]

    encoder = jax.tree_util.tree_map_with_path(cut, params.encoder)
    return params.replace(encoder=encoder)


def check(dtype, tolerance, rough, rate):
    one, four, metrics, cut_metrics = trained(dtype, rate)
    assert one.params.network["params"]["depth"]["mlp"]["out"]["kernel"].dtype == dtype
    assert largest(*(without_key_biases(x.params) for x in (one, four))) < tolerance
    assert largest(one.params, four.params) < rough
    assert largest(one.calibration, four.calibration) < rough
    assert largest(one.memory, four.memory) < rough  # the same slots, in the same order
    np.testing.assert_array_equal(one.memory.ids, four.memory.ids)
    assert int(four.step) == STEPS and largest(one.ema, four.ema) < rough
    moved = largest(one.params, as_type(small.params(), dtype))
    assert moved > STEPS * rate / 2
    assert metrics.names == cut_metrics.names
    for name in metrics:
        np.testing.assert_allclose(metrics[name], cut_metrics[name], rtol=1e-3, atol=1e-4)
    assert float(cut_metrics["reward"][1]) == REAL * 8


def test_four_devices_train_as_one_in_double(x64, compiled_fast):
    assert len(jax.local_devices()) == DEVICES
    check(np.float64, 1e-10, 1e-10, rate=3e-3)


def test_four_devices_train_as_one_in_single(compiled_fast):
    check(np.float32, 1e-6, 1e-5, rate=1e-4)  # the paper's


def test_a_mean_of_means_is_another_gradient(x64):
    """Shares of 3, 3, 3 and 1 questions: global counts give the batch's gradient, local ones not.

    With local counts every device's mean weighs ¼, so the lone question of the last weighs three
    times the others.
    """
    dtype = np.float64
    shape = fakes.shape(dtype=dtype, balance_weight=0.0)  # that one alone is not a sum over rows
    calibration = calibration_lib.identity(small.N, shape.config.d, dtype)
    memory = small.empty_memory(shape)
    tree = small.perturbed(as_type(small.params(), dtype), scale=0.1)
    batch = uneven(0, dtype)
    reference = logits_of(shape)(tree, batch, memory, calibration)
    rollout = small.random_rollout(batch.records)
    advantages = np.random.default_rng(0).normal(size=rollout.depth.shape)

    @small.quick
    def gradient(rows, counts):
        """Of a device that holds these rows."""
        records = batch.records.replace(valid=rows)
        valid = rows[:, None] & (rollout.depth >= 0)
        own = batch.replace(records=records)
        start = question(shape, tree, own, memory, calibration, own_slots=False)
        old, _ = policy.decisions(
            shape.config, shape.pool, start.logits, rollout, records.available
        )
        value = lambda p: loss(  # noqa: E731
            shape, p, own, memory, calibration, rollout, old, advantages, reference, valid, counts
        )[0]
        return jax.grad(value)(tree)

    def counts(rows):
        number = jnp.asarray((rows[:, None] & (rollout.depth >= 0)).sum(), dtype)
        return Counts(rollouts=number, questions=jnp.asarray(rows.sum(), dtype))

    real = batch.records.valid
    shares = [real & (np.arange(len(real)) // 3 == d) for d in range(DEVICES)]
    assert [int(s.sum()) for s in shares] == [3, 3, 3, 1]
    whole = gradient(real, counts(real))
    added = jax.tree.map(lambda *x: sum(x), *[gradient(s, counts(real)) for s in shares])
    meant = jax.tree.map(
        lambda *x: sum(x) / DEVICES, *[gradient(s, counts(s)) for s in shares]
    )
    assert largest(added, whole) < 1e-12
    assert largest(meant, whole) > 1e-3


def test_replicate_and_back():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(3)}
    many = parallel.replicate(tree)
    assert many["a"].shape == (DEVICES, 2, 3) and len(many["a"].sharding.device_set) == DEVICES
    back = parallel.unreplicate(many)
    np.testing.assert_array_equal(back["a"], tree["a"])
    assert bool(back["key"] == tree["key"])
    two = parallel.replicate(tree, jax.local_devices()[:2])
    assert two["a"].shape[0] == 2


def test_cpu_options_are_known_to_this_compiler():
    """One that XLA has dropped is left out silently, and compiling takes twice as long."""
    assert parallel.compiler_options() == parallel.CPU_OPTIONS
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        jax.jit(lambda x: x, compiler_options={"no_such_option": 1})(0)


def test_jit_step_reuses_the_state():
    step = parallel.jit_step(lambda s, x: (s + x, {"x": (x, 1)}))
    state = jnp.ones(3)
    new, _ = step(state, jnp.ones(3))
    assert state.is_deleted() and new.tolist() == [2, 2, 2]
