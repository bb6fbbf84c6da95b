"""Recursion until the stack is gone. Stopped by: ended|RecursionError|timeout"""

import sys

sys.setrecursionlimit(10**9)


def add(a, b):
    return repr(add(a, [b])) + 1
