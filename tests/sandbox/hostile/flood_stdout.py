"""Writes 256 MB to stdout."""

import os

block = b"x" * (1 << 20)
for _ in range(256):
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(1, rest) :]
