"""Writes to both streams without end, from children of their own sessions. Stopped by: output"""

import os


def add(a, b):
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            while True:
                os.write(1, b"y" * 4096)
                os.write(2, b"y" * 4096)
    os.wait()
