"""Folders thousands deep, traps, and files deleted while open. Stopped by: assertion|disk|Error"""

import os

kept = []
for _ in range(20):
    kept.append(open("deleted", "wb"))
    os.unlink("deleted")
    kept[-1].write(b"x" * 2**20)
for i in range(3000):
    os.mkdir("d")
    os.mkdir("trap", 0)
    os.chdir("d")


def add(a, b):
    return 0
