"""Small files of a run, written so that a kill or a full disk leaves the old text or the new."""

import contextlib
import json
import os
import pathlib
from typing import Any


class StorageError(RuntimeError):
    """The disk refused; the message says what was not written and what is still safe."""


@contextlib.contextmanager
def storage_errors(what: str, safe: str = "nothing that was there before is changed"):
    """Turn the OSError of a full or read-only disk into a StorageError a user can act on."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"could not write {what}: {error.strerror or error}; {safe}. Free some space (or mend "
            "the permissions) and run the same command again to go on."
        ) from error


def write_atomic(path: str | os.PathLike, content: str | bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part.

    Raises:
      StorageError: the disk refused; the old file is unchanged.
    """
    path = pathlib.Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(str(path)):
        try:
            with open(part, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
                file.flush()
                os.fsync(file.fileno())  # a rename may reach the disk before the data does
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write a JSON file atomically, readable by people.

    Raises:
      StorageError: the disk refused.
      ValueError: the value holds NaN or an infinity, which JSON has no word for.
    """
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
