"""Twenty processes take memory together; 1 GB at most."""

import os
import time

children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        block = bytearray(b"x") * (48 << 20)
        time.sleep(20)
        os._exit(0)
    children.append(pid)
    time.sleep(0.03)
time.sleep(2)
living = [pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)]
print("living", len(living))
if len(living) > 2:
    print("ESCAPED: processes that have 48 MB each", len(living))
