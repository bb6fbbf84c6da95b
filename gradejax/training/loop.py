"""The training loop: resume, prefetch, lagged metrics, checkpoints, clean ends.

A step is (state, batch) → (state, metrics). Batches are a function of the step number alone and
everything else is in the state, so a run that was killed and resumed ends with the same parameters
and the same metrics as an unbroken one (fault C05).
"""

import contextlib
import dataclasses
import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.training.checkpoint import Checkpoints
from gradejax.training.logging import RunLog, divide


class NonFiniteLoss(FloatingPointError):
    """The loss or the parameters are no longer finite; the message names the last good step."""


@dataclasses.dataclass(frozen=True)
class Status:
    """How a call of ``train`` ended.

    Attributes:
      name: "finished", "interrupted" (SIGINT or SIGTERM) or "stopped" (``should_stop``).
      step: optimiser batches done, all of them saved.
      message: one sentence for the user; for an interrupted run it holds the command to go on.
    """

    name: str
    step: int
    message: str


def go_on_command() -> str:
    """The command line of this process, quoted for a shell."""
    return shlex.join(sys.orig_argv)


@contextlib.contextmanager
def _signals() -> Iterator[list[str]]:
    """Collect SIGINT and SIGTERM; the second one acts at once, as if we were not here."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught  # Python lets only the main thread set handlers
        return
    # None stands for a handler that was not set from Python and cannot be put back
    before = {s: signal.getsignal(s) or signal.SIG_DFL for s in (signal.SIGINT, signal.SIGTERM)}

    def handler(number, frame):
        del frame
        caught.append(signal.Signals(number).name)
        for s, old in before.items():
            signal.signal(s, old)

    for s in before:
        signal.signal(s, handler)
    try:
        yield caught
    finally:
        for s, old in before.items():
            signal.signal(s, old)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that both leave alike; a second one
    ends the process at once. ``train`` has handlers of its own, which put these back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number, frame):
        del frame
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@jax.jit
def _leaf_is_finite(leaves):
    return [jnp.all(jnp.isfinite(x)) for x in leaves]


def _non_finite_paths(tree) -> list[str]:
    flat = [
        (path, x)
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
        if jnp.issubdtype(x.dtype, jnp.inexact)
    ]
    finite = jax.device_get(_leaf_is_finite([x for _, x in flat]))
    return [jax.tree_util.keystr(p) for (p, _), ok in zip(flat, finite, strict=True) if not ok]


def _steps_done(state) -> int:
    # A pmapped state holds one copy of the counter per device.
    return int(np.asarray(state.step).reshape(-1)[0])


def train(
    step_fn: Callable[[Any, Any], tuple[Any, Mapping[str, Any]]],
    state: Any,
    batch_at: Callable[[int], Any],
    *,
    steps: int,
    checkpoints: Checkpoints,
    log: RunLog,
    save_every: int,
    on_progress: Callable[[int, Mapping[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    place: Callable[[Any], Any] = jax.device_put,
    to_save: Callable[[Any], Any] = lambda state: state,
    meta: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> tuple[Any, Status]:
    """Train from ``state.step`` to ``steps``.

    The host works while the device does: after a step is dispatched the next batch is made and
    sent, and the metrics of the step before are fetched, logged and shown. Before a state is
    saved, its own metrics and its parameters are looked at, so a checkpoint is always good.

    Args:
      step_fn: (state, batch) → (state, metrics), jitted by the caller; it may donate the state.
        metrics: name → (sum, count), see ``logging.divide``; "loss" must be finite.
      state: has ``step`` (int32, batches done) and, as a rule, ``params``; restored by the caller
        (``resume``).
      batch_at: batch number (0-based) → pytree of arrays, a function of the number alone.
      steps: batches in all, those done before included.
      checkpoints: where states go: every ``save_every`` steps and at the end, whatever the number.
      log: gets one row per step.
      save_every: at least 1.
      on_progress: called with (step, means) once a step, one step late.
      should_stop: asked after each step; True saves and leaves.
      place: puts a batch on the device(s).
      to_save: what of the state is stored (for pmap: one replica).
      meta: JSON facts stored with each checkpoint.
      command: how to go on, for the message; this process's own command line by default.

    Returns:
      (state, Status).

    Raises:
      NonFiniteLoss: at the first step whose loss is not finite, or before saving parameters that
        are not; no such state is saved.
      CheckpointError, StorageError: the disk refused; earlier checkpoints are untouched.
    """
    if save_every < 1:
        raise ValueError(f"save_every must be at least 1, got {save_every}")
    step = _steps_done(state)
    log.begin(step)
    started = last = time.monotonic()
    pending: tuple[int, Mapping[str, Any]] | None = None

    def good() -> str:
        newest = checkpoints.latest_step()
        if newest is None:
            return "no checkpoint was saved before it"
        return f"the last good checkpoint, step {newest}, is kept"

    def report() -> None:
        nonlocal pending, last
        if pending is None:
            return
        done, metrics = pending
        pending = None
        means = divide(dict(jax.device_get(metrics)))
        now = time.monotonic()
        log.write(done, means, {"step": now - last, "run": now - started})
        last = now
        if on_progress is not None:
            on_progress(done, means)
        loss = means.get("loss")
        if loss is not None and not math.isfinite(loss):
            raise NonFiniteLoss(f"loss is {loss} at step {done}; {good()}")

    def save() -> None:
        report()
        bad = _non_finite_paths(state.params if hasattr(state, "params") else state)
        if bad:
            raise NonFiniteLoss(
                f"the parameters after step {step} are not finite ({', '.join(bad[:5])}), though "
                f"the loss of that step was; {good()}"
            )
        checkpoints.save(step, to_save(state), meta)

    name = "finished"
    with _signals() as caught:
        batch = place(batch_at(step)) if step < steps else None
        while step < steps:
            state, metrics = step_fn(state, batch)
            step += 1
            batch = place(batch_at(step)) if step < steps else None
            report()
            pending = (step, metrics)
            if caught:
                name = "interrupted"
            elif should_stop is not None and step < steps and should_stop():
                name = "stopped"
            if step % save_every == 0 or step == steps or name != "finished":
                save()
            if name != "finished":
                break
        if step >= steps:
            name = "finished"
            save()  # nothing to do if it is there; a longer run may have been cut to ``steps``
    if name == "finished":
        message = f"trained {step} steps"
    elif name == "stopped":
        message = f"stopped after step {step} of {steps}, saved"
    else:
        message = (
            f"{caught[0]}: saved step {step} of {steps}. To go on, run the same command again: "
            f"{command or go_on_command()}"
        )
    return state, Status(name, step, message)


def resume(state: Any, checkpoints: Checkpoints) -> Any:
    """The newest checkpoint in the structure of ``state``, or ``state`` itself if there is none.

    Raises:
      CheckpointError: it does not fit; the message names the paths.
    """
    return state if checkpoints.latest_step() is None else checkpoints.restore(state)
