"""Returns integers of one hash: a dictionary of them takes quadratic time. Stopped by: assert|timeout"""


def add(a, b):
    return {i * (2**61 - 1): 0 for i in range(1, 60_000)}
