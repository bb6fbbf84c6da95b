"""A linear regression trained by the real loop; run as a script it stands for a killed run.

    python toy_run.py WORKDIR [--steps N] [--kill-at N] [--term-at N] [--hold]
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradejax.training.checkpoint import Checkpoints
from gradejax.training.logging import RunLog
from gradejax.training.loop import resume, train
from gradejax.training.workdir import Workdir

OPTIMIZER = optax.adamw(0.3)
SAVE_EVERY = 5


@flax.struct.dataclass
class State:
    params: Any
    opt_state: Any
    step: Any  # [] int32
    key: Any  # typed key


def fresh() -> State:
    params = {"w": jnp.zeros((3, 1)), "b": jnp.zeros((1, 1))}
    return State(params, OPTIMIZER.init(params), jnp.int32(0), jax.random.key(7))


def batch_at(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((11, step))
    x = rng.standard_normal((8, 3)).astype(np.float32)
    return {"x": x, "y": x @ np.float32([[1], [-2], [3]]) + 1, "step": np.int32(step)}


def plain_step(state: State, batch) -> tuple[State, dict[str, Any]]:
    # noise from (key, step): a resumed run must draw what the unbroken one draws
    noise = 0.1 * jax.random.normal(jax.random.fold_in(state.key, state.step), batch["y"].shape)

    def loss(params):
        error = batch["x"] @ params["w"] + params["b"] - batch["y"] - noise
        return jnp.sum(error**2) / error.size, jnp.sum(error**2)

    (_, total), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    metrics = {
        "loss": (total, jnp.float32(batch["y"].size)),
        "batch_step": (batch["step"], jnp.int32(1)),
        "usage": (jnp.abs(state.params["w"][:, 0]), jnp.int32(1)),
    }
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state, step=state.step + 1), metrics


def run(path, steps=23, on_progress=None, step_fn=None, save_every=SAVE_EVERY, **kwargs):
    """Train in a workdir as experiments do; returns (state, status)."""
    step_fn = step_fn or jax.jit(plain_step, donate_argnums=0)
    with (
        Workdir(path) as workdir,
        Checkpoints(workdir.checkpoints) as checkpoints,
        RunLog(workdir.metrics, workdir.events) as log,
    ):
        workdir.claim({"train": {"steps": steps}, "model": "toy"}, may_change=("train.steps",))
        return train(
            step_fn, resume(fresh(), checkpoints), batch_at, steps=steps, checkpoints=checkpoints,
            log=log, save_every=save_every, on_progress=on_progress, **kwargs,
        )  # fmt: skip


def digest(state: State) -> str:
    """All bits of a state as text."""
    plain = state.replace(key=jax.random.key_data(state.key))
    leaves = jax.tree_util.tree_flatten_with_path(plain)[0]
    return json.dumps([(jax.tree_util.keystr(p), np.asarray(x).tobytes().hex()) for p, x in leaves])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir")
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--term-at", type=int)
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()

    def on_progress(step, means):
        if step == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == args.term_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if args.hold:
            print("holding", flush=True)
            time.sleep(120)

    state, status = run(args.workdir, args.steps, on_progress)
    print(status.message)
    pathlib.Path(args.workdir, "digest").write_text(digest(state))
    sys.exit(0 if status.name == "finished" else 3)


if __name__ == "__main__":
    main()
