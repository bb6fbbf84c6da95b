"""A pattern that backtracks for ever, in C. Stopped by: timeout|ended"""

import re


def add(a, b):
    return re.match(r"(a|aa)+$", "a" * 100 + "b")
