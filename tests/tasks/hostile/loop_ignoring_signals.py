"""Ignores every signal that can be ignored, and loops. Stopped by: timeout|ended"""

import signal

for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass


def add(a, b):
    while True:
        pass
