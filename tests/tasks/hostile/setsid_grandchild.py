"""A grandchild leaves session and group, as a daemon does, and stays."""

import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for fd in range(64):
            try:
                os.close(fd)
            except OSError:
                pass
        time.sleep(300)
    os._exit(0)
os.wait()


def add(a, b):
    return 0
