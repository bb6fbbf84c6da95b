"""Leaves a child asleep and waits with it. Stopped by: timeout"""

import multiprocessing
import time


def add(a, b):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
    time.sleep(300)
