"""Becomes another program in the middle of a call. Stopped by: ended|Error"""

import os
import sys


def add(a, b):
    for path in ("/bin/true", "/usr/bin/true", "/bin/sh"):
        try:
            os.execv(path, [path])
        except OSError:
            pass
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "print('passed')"])
