"""Writes one file without end. Stopped by: ended|OSError"""


def add(a, b):
    with open("big", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 2**20)
