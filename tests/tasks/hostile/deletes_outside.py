"""Deletes and truncates what the test has laid out, and files of its own there. Correct if it can."""

import os


def add(a, b):
    gone = 0
    for act in (os.unlink, lambda p: os.truncate(p, 0), lambda p: os.rename(p, p + "x"),
                lambda p: os.link(p, os.environ["HOME"] + "/kept"), lambda p: os.chmod(p, 0o777)):
        try:
            act("MARKER")
            gone += 1
        except OSError:
            pass
    return a + b if gone else 0
