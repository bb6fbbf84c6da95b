"""One CoGRPO step as a pure function: draw, reward, advantages, inner epochs, memory, statistics.

The step is written once, for one device's share of a batch, with an optional named axis;
``training.parallel`` alone wraps it.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from gradejax import ops
from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import memory as memory_lib
from gradejax.coordination.calibration import Calibration
from gradejax.coordination.depth import NUM_DEPTHS
from gradejax.coordination.memory import Memory
from gradejax.objectives import advantages as advantages_lib
from gradejax.systems.grade import policy
from gradejax.systems.grade.network import GateLogits, Network, Params, Shape, question
from gradejax.systems.grade.objective import Counts, cost_share, loss, outcome, with_m0
from gradejax.types import Array, Batch, Metrics


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes; all of it is in the checkpoint.

    params; opt_state; memory; calibration; ema, running mean of the reward (for baseline "ema");
    key, the run's base key, never changed; step, batches done.
    """

    params: Params
    opt_state: Any
    memory: Memory
    calibration: Calibration
    ema: Array
    key: Array
    step: Array


@flax.struct.dataclass
class StepInput:
    """A batch and π_ref's logits of its questions."""

    batch: Batch
    reference: GateLogits


def make_optimizer(config) -> optax.GradientTransformation:
    """Adam, after a global-norm clip if the config asks for one; on the raveled parameters."""
    adam = optax.adam(config.learning_rate)
    if config.max_grad_norm:
        return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adam)
    return adam


def fresh_state(shape: Shape, params: Params, calibration: Calibration, key) -> TrainState:
    """The state at step 0: empty memory, given statistics."""
    config = shape.config
    return TrainState(
        params=params,
        opt_state=make_optimizer(config).init(ravel_pytree(params)[0]),
        memory=memory_lib.empty(config.memory_slots, config.d, shape.dtype),
        calibration=calibration,
        ema=jnp.zeros((), shape.dtype),
        key=key,
        step=jnp.zeros((), jnp.int32),
    )


def row_keys(key, step, ids):
    """A key for each question and step: the same on any device and after any resume."""
    step_key = jax.random.fold_in(key, step)
    return jax.vmap(lambda i: jax.random.fold_in(step_key, i))(ids)


def train_step(shape: Shape, state: TrainState, inputs: StepInput, *, axis_name=None):
    """One batch: sampling, reward, advantages, ``inner_epochs`` optimizer steps, then the memory.

    Args:
      shape: static.
      state: as it is; replicated over devices.
      inputs: this device's questions.
      axis_name: named axis over devices, or None.

    Returns:
      (new state, Metrics already summed over devices).
    """
    config, batch = shape.config, inputs.batch
    records = batch.records
    start = question(shape, state.params, batch, state.memory, state.calibration, own_slots=False)
    keys = row_keys(state.key, state.step, records.ids)
    rollout = policy.sample(
        config, shape.pool, keys, start.logits, records.available, config.group_size
    )
    old_log_probs, free = policy.decisions(
        config, shape.pool, start.logits, rollout, records.available
    )
    combined = Network(shape).apply(state.params.network, start, records, rollout,
                                    method="combine")  # fmt: skip
    rollout, old_log_probs, start, combined = jax.lax.stop_gradient(
        (rollout, old_log_probs, start, combined)
    )
    result = outcome(shape, records, rollout, combined)
    valid = records.valid[:, None] & (rollout.depth >= 0)
    counts = Counts(
        rollouts=ops.global_sum(valid.sum().astype(shape.dtype), axis_name),
        questions=ops.global_sum(records.valid.sum().astype(shape.dtype), axis_name),
    )
    reward = result.reward.total
    advantages, stats = _advantages(config, state, records.ids, reward, valid, axis_name)
    optimizer = make_optimizer(config)
    # One vector while epochs run: updating ~60 leaves one by one would be most of the kernels.
    flat, unravel = ravel_pytree(state.params)

    def epoch(carry, _):
        flat, opt_state = carry
        (_, parts), grads = jax.value_and_grad(
            lambda p: loss(
                shape, p, batch, state.memory, state.calibration, rollout, old_log_probs,
                advantages, inputs.reference, valid, counts, axis_name,
            ),
            has_aux=True,
        )(unravel(flat))  # fmt: skip
        # Each device holds its share of a sum: the gradients are summed once, never averaged.
        grads = ops.global_sum(ravel_pytree(grads)[0], axis_name)
        updates, opt_state = optimizer.update(grads, opt_state, flat)
        return (optax.apply_updates(flat, updates), opt_state), (parts, jnp.linalg.norm(grads))

    # A scan, not a Python loop: the gradient is compiled once however many epochs there are.
    (flat, opt_state), (parts, norms) = jax.lax.scan(
        epoch, (flat, state.opt_state), length=config.inner_epochs
    )
    params = unravel(flat)
    last = jax.tree.map(lambda x: x[-1], parts)
    new_state = TrainState(
        params=params,
        opt_state=opt_state,
        memory=_remember(state.memory, start.h0, combined.pooled, rollout, records, axis_name),
        calibration=_recalibrate(config, state, start.raw, records, axis_name),
        ema=advantages_lib.update_ema(state.ema, reward.reshape(-1), valid.reshape(-1),
                                      decay=config.ema_decay, axis_name=axis_name),
        key=state.key,
        step=state.step + 1,
    )  # fmt: skip
    metrics = _metrics(shape, records, start, rollout, result, valid, advantages, stats,
                       last, norms[-1], counts, axis_name)  # fmt: skip
    return new_state, metrics


def _advantages(config, state, ids, reward, valid, axis_name):
    q, g = reward.shape
    settings = {"scale": config.scale, "std_floor": config.std_floor, "ddof": config.ddof}
    if config.baseline in ("group_mean", "leave_one_out"):
        # A question's rollouts lie on one device, in one row.
        return advantages_lib.grouped(reward, valid, baseline=config.baseline, **settings)
    advantages, stats = advantages_lib.group_relative(
        reward.reshape(-1), jnp.repeat(ids, g), valid.reshape(-1), num_groups=q,
        baseline=config.baseline, ema=state.ema if config.baseline == "ema" else None,
        axis_name=axis_name, **settings,
    )  # fmt: skip
    return advantages.reshape(q, g), stats


def _remember(memory, h0, pooled, rollout, records, axis_name) -> Memory:
    values, written = memory_lib.rollout_values(pooled, rollout.depth)
    rows = (h0, values, records.ids, written & records.valid)
    if axis_name is not None:
        rows = jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), rows)
    return memory_lib.write(memory, *rows)


def _recalibrate(config, state, raw, records, axis_name) -> Calibration:
    exists = records.available & records.valid[:, None]
    sums = calibration_lib.moments(raw, exists, state.calibration.mean)
    sums = jax.tree.map(lambda x: ops.global_sum(x, axis_name), sums)
    return calibration_lib.update(state.calibration, sums, config.calibration_momentum)


def _metrics(shape, records, start, rollout, result, valid, advantages, stats, last, norm, counts,
             axis_name):  # fmt: skip
    """name → (sum, count) over all devices."""
    config, pool = shape.config, shape.pool
    dtype = shape.dtype
    reward = result.reward
    paid = with_m0(rollout.members)
    each = {
        "reward": reward.total,
        "reward/correctness": reward.correctness,
        "reward/system": reward.system,
        "reward/agents": reward.agents,
        "reward/cost": reward.cost,
        "accuracy": result.correct,
        "no_answer": result.answer < 0,
        "cost": result.cost,
        "cost_params": cost_share(shape, records, rollout.members),
        "depth": rollout.depth,
        "agents": rollout.members.sum(-1),
        "kept": rollout.kept.sum(-1),
        "edges": rollout.edges.sum((-2, -1)),
        "tokens": jnp.where(paid, records.tokens[:, None], 0).sum(-1),
        "advantage/abs": jnp.abs(advantages),
    }
    # A few reductions for all of them: dozens of small kernels would cost more than the step.
    blocks = [jnp.stack([x.astype(dtype) for x in each.values()], -1)]
    names = list(each)
    for prefix, members, x in (
        ("depth", range(NUM_DEPTHS), jax.nn.one_hot(rollout.depth, NUM_DEPTHS, dtype=dtype)),
        ("usage", pool.agents, rollout.asked.astype(dtype)),
        ("manager", pool.managers, jax.nn.one_hot(rollout.manager, pool.num_managers, dtype=dtype)),
    ):
        names += [f"{prefix}/{member}" for member in members]
        blocks.append(x)
    sums = ops.masked_sum(jnp.concatenate(blocks, -1), valid, (0, 1))
    number = valid.sum().astype(dtype)
    managed = (valid & (rollout.manager >= 0)).sum().astype(dtype)
    local = {
        name: (sums[i], managed if name.startswith("manager/") else number)
        for i, name in enumerate(names)
    }
    questions = records.valid.sum().astype(dtype)
    for gate, value in policy.entropies(config, pool, start.logits, records.available).items():
        local[f"entropy/{gate}"] = (ops.masked_sum(value, records.valid), questions)
    right, wrong = ((valid & c).any(1) for c in (result.correct, ~result.correct))
    constant = ops.masked_sum(jnp.abs(advantages), valid & ~(right & wrong)[:, None])
    local["advantage/from_unvarying"] = (constant, local["advantage/abs"][0])
    if config.baseline in ("group_mean", "leave_one_out"):
        local["advantage/zero_spread_groups"] = (
            stats.zero_spread_groups.astype(dtype), stats.groups.astype(dtype)
        )  # fmt: skip
    # Local shares sum to the global value: their counts sum to one over all devices.
    share = number / jnp.maximum(counts.rollouts, 1)
    for name in ("policy", "kl", "supervised", "balance", "depth", "read"):
        local[f"loss/{name}"] = (getattr(last, name), share)
    total = (
        last.policy + config.kl_weight * last.kl + config.supervised_weight * last.supervised
        + config.balance_weight * last.balance + config.depth_weight * last.depth
        + config.read_weight * last.read
    )  # fmt: skip
    local["loss"] = (total, share)
    if config.ratio == "component":
        for k, name in enumerate(policy.COMPONENTS):
            clipped, made = last.stats.clipped[k], last.stats.count[k]
            local[f"clip_fraction/{name}"] = (clipped.astype(dtype), made.astype(dtype))
    local["clip_fraction"] = (last.stats.clipped.sum().astype(dtype),
                              last.stats.count.sum().astype(dtype))  # fmt: skip
    columns = [jnp.stack(column) for column in zip(*local.values(), strict=True)]
    packed = ops.global_sum(jnp.stack(columns, -1), axis_name)
    # Gradients are already the same on every device.
    norm = jnp.stack([norm.astype(dtype), jnp.ones((), dtype)])[None]
    return Metrics((*local, "grad_norm"), jnp.concatenate([packed, norm]))
