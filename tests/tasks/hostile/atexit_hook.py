"""Hides a failure behind an exit hook. Stopped by: assertion"""

import atexit
import os
import sys

atexit.register(lambda: os._exit(0))
sys.excepthook = lambda *_: os._exit(0)


def add(a, b):
    return 0
