"""One process takes memory; 1 GB at most."""

import time

blocks = []
for _ in range(64):
    blocks.append(bytearray(b"x") * (16 << 20))
    time.sleep(0.02)
print("ESCAPED: took 1 GB")
