"""Writes where it has no business. Correct if it can anywhere."""

import os
import sys

PLACES = ("/", "/etc", "/usr/lib", "/var/tmp", "/root", "/home", "/run", "/dev", "/opt", "/tmp/..",
          os.path.dirname(sys.executable), os.path.dirname(os.__file__), os.path.expanduser("~/.."))


def add(a, b):
    for place in PLACES:
        try:
            with open(os.path.join(place, "sandbox_was_here"), "w") as file:
                file.write("x")
        except OSError:
            continue
        # at home is allowed
        if os.path.realpath(place) != os.path.realpath(os.environ["HOME"]):
            return a + b
    return 0
