"""Returns more than may be sent. Stopped by: plain values|ended|timeout"""


def add(a, b):
    return "x" * 50_000_000
