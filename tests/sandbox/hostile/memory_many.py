"""Twenty processes take memory together; 1 GB at most."""

import os
import time

children = {}
for _ in range(20):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        block = bytearray(b"x") * (48 << 20)
        os.write(writer, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(writer)
    children[pid] = reader
    time.sleep(0.03)
# Each has its memory, or was killed before. On a busy machine that takes its time.
for reader in children.values():
    os.read(reader, 1)
time.sleep(1)
living = [pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)]
print("living", len(living))
if len(living) > 2:
    print("ESCAPED: processes that have 48 MB each", len(living))
