"""Answers with lengths that lie and bytes that are no message. Stopped by: plain values|ended"""

import os


def add(a, b):
    os.write(4, b"\xff\xff\xff\xff" + b"\x00" * 1000)
    os._exit(0)
