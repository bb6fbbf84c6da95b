"""Writes small files without end, and never minds an error. Stopped by: timeout|disk"""

import itertools


def add(a, b):
    for i in itertools.count():
        try:
            with open(f"{i}", "wb") as file:
                file.write(b"x" * 2**16)
        except OSError:
            pass
