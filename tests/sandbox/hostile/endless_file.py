"""Leaves a result that is larger than what may be collected, and a sparse one."""

import os

os.makedirs("out")
with open("out/large", "wb") as file:
    file.truncate(32 << 20)
