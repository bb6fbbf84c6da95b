"""Prints without end. Stopped by: output"""


def add(a, b):
    while True:
        print("y" * 1000)
