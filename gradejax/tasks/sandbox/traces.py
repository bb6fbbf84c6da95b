"""What a program leaves behind: processes and files, found, measured and ended.

The program may have made them to keep whoever cleans up busy, so nothing here recurses, follows a
link or goes on without bound.
"""

import contextlib
import errno
import os
import signal
import stat
import time

_MOST_FILES = 4096


def descendants(pid: int) -> list[int]:
    """All processes under `pid`, nearest first."""
    found, front = [], [pid]
    while front:
        front = [child for parent in front for child in _children(parent)]
        found += front
    return found


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file,
            ):
                found += map(int, file.read().split())
    return found


def end_descendants() -> None:
    """Kills and reaps until no descendant is left; orphans come to this process (subreaper).

    Returns after 10 s at the latest: a process in an uninterruptible wait cannot be ended sooner.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none can breed meanwhile
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(.001)


def stored(folder: str, pids: set[int]) -> int | None:
    """Bytes on disk under `folder` and in deleted files that `pids` hold open.

    None when there are over `_MOST_FILES` entries or a path is too long: both are made to keep a
    reader busy. (os.walk would recurse as deep as the folders go.)
    """
    used, count, waiting = 0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > _MOST_FILES:
                        return None
                    with contextlib.suppress(FileNotFoundError):
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None
    deleted = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{fd}")
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        deleted[found.st_dev, found.st_ino] = found.st_blocks * 512
    return used + sum(deleted.values())


def remove(folder: str) -> None:
    """Removes `folder` whatever the modes and however deep; follows no link.

    What lies deeper is first moved up, so that no path grows and nothing recurses.
    """
    try:
        top = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        while names := os.listdir(top):
            for name in names:
                if _unlinked(name, top):
                    continue
                inner = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                for child in os.listdir(inner):
                    if not _unlinked(child, inner):
                        os.rename(child, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)
                os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _unlinked(name: str, folder: int) -> bool:
    """Removes a file; of a folder, makes it one that can be entered and returns False."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=folder)
        return False
    return True
