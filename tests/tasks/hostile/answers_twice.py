"""Forks in a call: parent and child both go on to answer, the child for the tests to come."""

import os


def add(a, b):
    os.fork()
    return 0
