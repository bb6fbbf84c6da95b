"""Returns an integer of a hundred million digits. Stopped by: timeout|ended|plain values|Memory"""

import sys

sys.set_int_max_str_digits(0)


def add(a, b):
    return 1 << 400_000_000
