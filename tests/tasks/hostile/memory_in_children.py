"""Stays under the limit of one process, with many processes. Stopped by: memory"""

import os
import time


def add(a, b):
    for _ in range(8):
        if os.fork() == 0:
            break
    kept = b"x" * (100 * 2**20)
    time.sleep(600)
    return len(kept)
