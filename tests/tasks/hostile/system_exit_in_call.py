"""Raises SystemExit(0), KeyboardInterrupt and GeneratorExit in calls. Stopped by: SystemExit"""

import sys


def add(a, b):
    sys.exit(0)
