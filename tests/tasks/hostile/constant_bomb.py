"""Modules that import each other while they multiply. Stopped by: timeout|ended|Error|disk"""

import pathlib
import sys

sys.path.insert(0, ".")
for i in range(3000):
    pathlib.Path(f"bomb{i}.py").write_text(f"import bomb{i + 1}\nx = [0] * 10_000_000\n")
import bomb0  # noqa: E402


def add(a, b):
    return bomb0
