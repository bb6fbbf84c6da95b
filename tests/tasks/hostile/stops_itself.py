"""Stops itself and hopes that a stopped process is forgotten. Stopped by: timeout|PermissionError"""

import os
import signal


def add(a, b):
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.wait()
