"""Opens descriptors and pipes until there are none, in several processes. Stopped by: timeout|Error"""

import os
import time


def add(a, b):
    for _ in range(5):
        os.fork()
    kept = []
    while True:
        try:
            kept.append(os.pipe())
        except OSError:
            time.sleep(600)
