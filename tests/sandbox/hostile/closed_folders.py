"""Leaves folders and files that their owner may not read."""

import os

os.makedirs("out/closed/inner/most")
for path in ("out/closed/inner/most/file", "out/file"):
    with open(path, "w") as file:
        file.write("hidden")
    os.chmod(path, 0)
for path in ("out/closed/inner/most", "out/closed/inner", "out/closed", "out"):
    os.chmod(path, 0)
os.chmod("/workspace", 0)
