"""Never comes back. Stopped by: timeout|ended"""


def add(a, b):
    while True:
        pass
