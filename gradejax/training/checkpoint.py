"""Saving and restoring training states with orbax, so that nothing that was saved is ever lost.

The newest checkpoint is always kept (fault C08); only committed ones count (C06: whole-number
folder names that orbax finished); restoring always gets a target of shapes and dtypes, compared
with what is on disk first, because orbax would cast a dtype silently (C01, C07).
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says which and why."""


def _is_key(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _describe(tree) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path → (shape, dtype); keys are compared by their raw data."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        ocp.utils.tuple_path_from_keypath(path) and "/".join(
            ocp.utils.tuple_path_from_keypath(path)
        ): (tuple(x.shape), str(x.dtype))
        for path, x in flat
        if not _is_key(x)
    }  # fmt: skip


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they lie; made if missing.
      keep: how many of the newest to keep.
    """

    def __init__(self, folder: str | pathlib.Path, *, keep: int = 2):
        self._folder = pathlib.Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            cleanup_tmp_directories=True,  # torn folders of a killed run are never "latest"
            enable_async_checkpointing=False,  # states are small; a synchronous save cannot be lost
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def latest_step(self) -> int | None:
        """The newest committed step, or None."""
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint; returns once it is committed.

        Args:
          step: optimiser batches done.
          state: pytree of arrays (typed keys allowed).
          meta: JSON-serialisable facts stored beside it.

        Raises:
          CheckpointError: the disk refused; earlier checkpoints are untouched.
        """
        if step in self._manager.all_steps():
            return
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(dict(meta or {}))
                ),
            )
            self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"could not save step {step} under {self._folder}: {error}. Earlier checkpoints "
                f"({self.all_steps() or 'none'}) are untouched; free some space and run the same "
                "command again to go on from the newest."
            ) from error

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The facts stored with a step (the newest by default)."""
        step = self._step(step)
        return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))[
            "meta"
        ]

    def restore(self, target: Any, step: int | None = None) -> Any:
        """Read a checkpoint into the structure of ``target``.

        Args:
          target: pytree of arrays or ShapeDtypeStructs; shardings are taken from it.
          step: which; the newest by default.

        Raises:
          CheckpointError: none there, or its paths, shapes or dtypes differ from the target's;
            the message names the paths.
        """
        step = self._step(step)
        saved = self._manager.item_metadata(step)["state"]
        self._compare(_describe(saved.tree if hasattr(saved, "tree") else saved),
                      _describe(target), step)  # fmt: skip
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        return self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        )["state"]

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def _step(self, step: int | None) -> int:
        step = self.latest_step() if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise CheckpointError(
                f"no checkpoint{'' if step is None else f' of step {step}'} under {self._folder}; "
                f"steps there: {self.all_steps() or 'none'}"
            )
        return step

    def _compare(self, saved, wanted, step) -> None:
        problems = [f"{p}: in the checkpoint, not in this system" for p in saved.keys() - wanted]
        problems += [f"{p}: missing from the checkpoint" for p in wanted.keys() - saved]
        problems += [
            f"{p}: checkpoint has {saved[p]}, this system has {wanted[p]}"
            for p in saved.keys() & wanted
            if saved[p] != wanted[p]
        ]
        if problems:
            raise CheckpointError(
                f"step {step} under {self._folder} does not fit this system:\n  "
                + "\n  ".join(sorted(problems)[:20])
            )
