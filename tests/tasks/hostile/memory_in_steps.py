"""Takes memory until there is none and then waits with it. Stopped by: timeout|memory|ended|Memory"""

import time


def add(a, b):
    kept = []
    while True:
        try:
            kept.append(b"x" * 2**20)
        except MemoryError:
            time.sleep(600)
