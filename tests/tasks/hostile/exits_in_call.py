"""Ends with success in the middle of the test. Stopped by: ended"""

import os


def add(a, b):
    os._exit(0)
