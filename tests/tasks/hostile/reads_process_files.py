"""Reads environment, memory and descriptors of other processes. Correct if it can of any."""

import glob
import os


def add(a, b):
    own = str(os.getpid())
    for path in glob.glob("/proc/[0-9]*"):
        if path.endswith("/" + own):
            continue
        for name in ("environ", "mem", "maps", "fd", "root", "cwd"):
            try:
                if name in ("fd", "root", "cwd"):
                    os.listdir(f"{path}/{name}")
                else:
                    open(f"{path}/{name}", "rb").close()
                return a + b
            except OSError:
                pass
    return 0
