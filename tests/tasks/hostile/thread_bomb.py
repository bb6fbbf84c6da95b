"""Starts threads without end. Stopped by: timeout|MemoryError"""

import threading
import time


def add(a, b):
    while True:
        try:
            threading.Thread(target=time.sleep, args=(600,)).start()
        except RuntimeError:
            pass
