"""How a command of these ends: its own status, or one line where the user can mend something."""

import errno
import os
import sys
from collections.abc import Callable

WRONG, INTERRUPTED, CLOSED = 2, 130, 141  # as argparse, and as shells count SIGINT and SIGPIPE


def run(work: Callable[[], int]) -> int:
    """Do the work; returns the exit status.

    Its own, or 2 with a line on stderr for an error that says what is wrong with what was given,
    130 after Ctrl-C, and 141 where nobody reads standard output any longer. What a terminal's
    encoding cannot show is written as ``\\u2248``.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = work()
        print(end="", flush=True)  # what fails is found here and not as the interpreter ends
        return status
    except BrokenPipeError:
        _drop_output()
        return CLOSED
    except (OSError, ValueError, ImportError, MemoryError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            _drop_output()
        print(f"error: {str(error) or 'not enough memory'}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _drop_output() -> None:
    """What is left would be written, and fail, once more as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
