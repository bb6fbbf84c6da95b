"""Unpacks 20 GB from 20 MB, in steps. Stopped by: timeout|ended|memory|Memory|disk"""

import zlib


def add(a, b):
    packed = zlib.compress(bytes(2**24))
    return b"".join(zlib.decompress(packed) for _ in range(10_000))
