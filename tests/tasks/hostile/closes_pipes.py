"""Closes all its descriptors and stays alive. Stopped by: ended|timeout"""

import os
import time


def add(a, b):
    os.closerange(0, 100)
    time.sleep(300)
