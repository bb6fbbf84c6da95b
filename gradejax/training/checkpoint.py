"""Saving and restoring training states with orbax, so that nothing that was saved is ever lost.

The newest checkpoint is always kept, whatever its score (fault C08); only committed ones count
(C06: whole-number folder names that orbax finished); restoring always gets a target of shapes,
dtypes and shardings, compared with what is on disk first, because orbax would cast a dtype
silently (C01, C07). Each step carries a digest of what was saved: storage that flips a bit would
otherwise give a system with other parameters, and nothing would say so.
"""

import contextlib
import functools
import json
import logging
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from gradejax.training.digest import is_key, state_digest, text_digest
from gradejax.training.files import StorageError


class CheckpointError(StorageError):
    """A checkpoint could not be written or read; the message says which and why."""


def _describe(tree) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path → (shape, dtype); typed keys as the raw data that orbax stores for them."""
    out = {}
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = "/".join(ocp.utils.tuple_path_from_keypath(path))
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ValueError(
                f"state leaf {name!r} is a {type(x).__name__}, not an array: make it one, so that "
                "its dtype is known when it is restored"
            )
        if is_key(x):
            x = jax.eval_shape(jax.random.key_data, x)
        out[name] = (tuple(x.shape), str(x.dtype))
    return out


@contextlib.contextmanager
def _quiet():
    """Silence orbax's threads, which log the traceback of every error that is also raised."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


_LATE = "Event loop is closed"


@functools.cache
def _no_late_callbacks() -> None:
    """In a save that fails, tensorstore's threads call back into the event loop that orbax has
    closed and print a traceback for each array; the error itself is raised besides."""
    before = sys.unraisablehook

    def hook(error):
        if not isinstance(error.exc_value, RuntimeError) or str(error.exc_value) != _LATE:
            before(error)

    sys.unraisablehook = hook


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they lie; made if missing.
      keep: how many of the newest to keep, at least 1.
      keep_best: how many of the best by score to keep besides; steps without a score, or with one
        that is not a finite number, never count as best.
      read_only: for evaluation; nothing is made, cleaned or deleted, so that a run that is writing
        there is not disturbed.

    Raises:
      ValueError: keep < 1.
      CheckpointError: read_only and the folder does not exist.
    """

    def __init__(
        self, folder: str | pathlib.Path, *, keep: int = 2, keep_best: int = 0,
        read_only: bool = False,
    ):  # fmt: skip
        if keep < 1 or keep_best < 0:
            raise ValueError(f"keep must be >= 1 and keep_best >= 0, got {keep} and {keep_best}")
        self._folder = pathlib.Path(folder).absolute()
        self._keep, self._keep_best, self._read_only = keep, keep_best, read_only
        if read_only and not self._folder.is_dir():
            raise CheckpointError(f"no folder of checkpoints at {self._folder}")
        if not read_only:
            with self._writing(f"could not make {self._folder}"):
                self._folder.mkdir(parents=True, exist_ok=True)
            for torn in self._folder.glob("*.deleted"):
                shutil.rmtree(torn, ignore_errors=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,  # pruned below: orbax deletes in place, which a kill could tear
            save_interval_steps=0 if read_only else 1,
            create=False,
            cleanup_tmp_directories=not read_only,  # torn saves of a killed run are never "latest"
            enable_async_checkpointing=False,  # states are small; a synchronous save cannot be lost
            read_only=read_only,
        )
        # Named handlers: without them a new process gets no metadata of what an old one saved.
        handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        with _quiet(), self._writing(f"could not open {self._folder}"):
            self._manager = ocp.CheckpointManager(
                self._folder, options=options, item_handlers=handlers
            )

    def latest_step(self) -> int | None:
        """The newest committed step, or None."""
        return max(self.all_steps(), default=None)

    def all_steps(self) -> list[int]:
        """Committed steps in numeric order; a folder that orbax did not finish is none."""
        return sorted(
            step for step in self._manager.all_steps()
            if (self._folder / str(step) / "_CHECKPOINT_METADATA").exists()
        )  # fmt: skip

    def best_step(self) -> int | None:
        """The step of the highest finite score (the earliest of equals), or None."""
        ranked = self._ranked()
        return ranked[0] if ranked else None

    def save(
        self, step: int, state: Any, meta: Mapping[str, Any] | None = None, *,
        score: float | None = None,
    ) -> None:  # fmt: skip
        """Write a checkpoint; returns once it is committed. A step already there is left alone.

        Args:
          step: optimiser batches done.
          state: pytree of arrays (typed keys allowed).
          meta: JSON-serialisable facts stored beside it.
          score: higher is better; decides which are kept as best.

        Raises:
          CheckpointError: the disk refused; earlier checkpoints are untouched.
          ValueError: a leaf is no array, or has no elements (orbax cannot store such).
        """
        if self._read_only:
            raise CheckpointError(f"{self._folder} was opened to read only")
        if step in self.all_steps():
            return
        empty = [name for name, (shape, _) in _describe(state).items() if 0 in shape]
        if empty:
            raise ValueError(f"arrays without elements cannot be stored: {', '.join(empty)}")
        finite = score is not None and math.isfinite(score)
        # As JSON has it (tuples are lists), so that the digest is of what will be read.
        meta = json.loads(json.dumps(dict(meta or {})))
        facts = {
            "meta": meta, "score": float(score) if finite else None,
            "digest": {"state": state_digest(state), "meta": text_digest(meta)},
        }  # fmt: skip
        _no_late_callbacks()
        try:
            with _quiet():
                self._manager.save(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(facts)
                    ),
                )
                self._manager.wait_until_finished()
        except (OSError, ValueError) as error:  # tensorstore tells of a full disk by ValueError
            for part in self._folder.glob(f"{step}.*tmp*"):
                shutil.rmtree(part, ignore_errors=True)  # give the space back
            self._manager.reload()
            raise CheckpointError(
                f"could not save step {step} under {self._folder}: {error}. Earlier checkpoints "
                f"({self.all_steps() or 'none'}) are untouched; free some space and run the same "
                "command again to go on from the newest."
            ) from error
        self._prune()

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The facts stored with a step (the newest by default).

        Raises:
          CheckpointError: none there, or they are torn, gone or not what was saved.
        """
        step = self._step(step)
        facts = self._facts(step)
        if facts["digest"] and text_digest(facts["meta"]) != facts["digest"]["meta"]:
            raise self._altered(step, "its facts")
        return facts["meta"]

    def restore(self, target: Any, step: int | None = None) -> Any:
        """Read a checkpoint into the structure of ``target``.

        Args:
          target: pytree of arrays or ShapeDtypeStructs; shardings are taken from it (none: the
            first device; NumPy leaves come back as NumPy), so a state saved on eight devices
            restores onto one.
          step: which; the newest by default.

        Raises:
          CheckpointError: none there, damaged, not what was saved, or its paths, shapes or dtypes
            differ from the target's; the message names the paths.
        """
        step = self._step(step)
        abstract = jax.tree.map(_abstract, target)
        wanted = _describe(abstract)
        try:
            saved = self._manager.item_metadata(step)["state"]
            saved = _describe(saved.tree if hasattr(saved, "tree") else saved)
        except Exception as error:
            raise self._damaged(step, error) from error
        self._compare(saved, wanted, step)
        try:
            with _quiet():
                state = self._manager.restore(
                    step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
                )["state"]
        except Exception as error:
            raise self._damaged(step, error) from error
        digest = self._facts(step)["digest"]
        if digest and state_digest(state) != digest["state"]:
            raise self._altered(step, "its state")
        return jax.tree.map(_like, target, state)

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _facts(self, step: int) -> dict[str, Any]:
        args = ocp.args.Composite(meta=ocp.args.JsonRestore())
        try:
            with _quiet():
                facts = self._manager.restore(step, args=args)["meta"]
            return {"meta": facts["meta"], "score": facts["score"], "digest": facts.get("digest")}
        except Exception as error:
            raise self._damaged(step, error) from error

    def _ranked(self) -> list[int]:
        scores = {}
        for step in self.all_steps():
            with contextlib.suppress(CheckpointError):  # a torn one is none of the best
                scores[step] = self._facts(step)["score"]
        return sorted((s for s in scores if scores[s] is not None), key=lambda s: (-scores[s], s))

    def _prune(self) -> None:
        """Delete all but the newest and the best; a rename first, so that a kill tears nothing."""
        steps = self.all_steps()
        best = self._ranked()[: self._keep_best] if self._keep_best else []
        spare = set(steps) - set(steps[-self._keep :]) - set(best)
        for step in spare:
            gone = self._folder / f"{step}.deleted"
            with self._writing(f"could not delete step {step} under {self._folder}"):
                os.rename(self._folder / str(step), gone)
            shutil.rmtree(gone, ignore_errors=True)
        if spare:
            self._manager.reload()

    def _step(self, step: int | None) -> int:
        step = self.latest_step() if step is None else step
        if step is None or step not in self.all_steps():
            raise CheckpointError(
                f"no checkpoint{'' if step is None else f' of step {step}'} under {self._folder}; "
                f"steps there: {self.all_steps() or 'none'}"
            )
        return step

    @staticmethod
    @contextlib.contextmanager
    def _writing(what: str):
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{what}: {error}; checkpoints there are untouched. Free some space (or mend the "
                "permissions) and run the same command again to go on."
            ) from error

    def _damaged(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"step {step} under {self._folder} cannot be read ({type(error).__name__}: "
            f"{str(error)[:300]}); {self._others(step)}"
        )

    def _altered(self, step: int, what: str) -> CheckpointError:
        return CheckpointError(
            f"step {step} under {self._folder} is not what was saved: {what} has another digest "
            f"than was stored with it; {self._others(step)}"
        )

    def _others(self, step: int) -> str:
        others = [s for s in self.all_steps() if s != step]
        return (
            f"other steps there: {others or 'none'}. Use an earlier step, or move the folder of "
            f"step {step} away to go on from an older one."
        )

    def _compare(self, saved, wanted, step) -> None:
        problems = [f"{p}: in the checkpoint, not in this system" for p in saved.keys() - wanted]
        problems += [f"{p}: missing from the checkpoint" for p in wanted.keys() - saved]
        problems += [
            f"{p}: checkpoint has {saved[p]}, this system has {wanted[p]}"
            for p in saved.keys() & wanted
            if saved[p] != wanted[p]
        ]
        if problems:
            more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise CheckpointError(
                f"step {step} under {self._folder} does not fit this system:\n  "
                + "\n  ".join(sorted(problems)[:20]) + more
            )  # fmt: skip


def _abstract(x):
    """Shape, dtype and a sharding of the present devices: orbax would ask for the saved ones."""
    sharding = getattr(x, "sharding", None)
    # A 64-bit host array that jax would narrow stays on the host, as it was when it was saved.
    narrowed = not is_key(x) and jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype
    if sharding is None and not narrowed:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _like(target, x):
    return np.asarray(x) if isinstance(target, np.ndarray | np.generic) else x
