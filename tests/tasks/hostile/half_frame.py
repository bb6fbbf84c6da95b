"""Sends half a message and waits. Stopped by: timeout"""

import os
import time


def add(a, b):
    os.write(4, b"\x00\x00\x01\x00[")
    time.sleep(300)
