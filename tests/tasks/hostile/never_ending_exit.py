"""Threads and hooks that will not let the interpreter end."""

import atexit
import threading
import time

threading.Thread(target=time.sleep, args=(300,)).start()
atexit.register(time.sleep, 300)


def add(a, b):
    return 0
