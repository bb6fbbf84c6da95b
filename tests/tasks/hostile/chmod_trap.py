"""Makes folders in its home that cannot be entered, listed or removed by a plain rmtree."""

import os

for i in range(20):
    os.makedirs(f"trap{i}/a/b/c")
    open(f"trap{i}/a/b/c/file", "w").close()
    for folder in (f"trap{i}/a/b/c", f"trap{i}/a/b", f"trap{i}/a", f"trap{i}"):
        os.chmod(folder, 0)
deep = "."
for _ in range(200):
    deep += "/" + "d" * 15
    os.mkdir(deep)
os.chmod(".", 0)


def add(a, b):
    return 0
