"""Quadratic work in C that holds the interpreter's lock. Stopped by: timeout|ended"""

import sys

sys.set_int_max_str_digits(0)


def add(a, b):
    return len(str(3**20_000_000))
