"""Leaves files in all shared places."""

import os
import tempfile

for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", tempfile.gettempdir(), "."):
    try:
        os.makedirs(f"{folder}/sandbox_was_here", exist_ok=True)
        with open(f"{folder}/sandbox_was_here/file", "wb") as file:
            file.write(b"x" * 1000)
    except OSError:
        pass


def add(a, b):
    return 0
