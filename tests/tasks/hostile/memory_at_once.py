"""Asks for 64 GiB. Stopped by: MemoryError"""

x = bytearray(64 * 2**30)


def add(a, b):
    return a + b
