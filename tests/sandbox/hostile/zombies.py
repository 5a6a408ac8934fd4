"""Leaves 600 ended processes to process 1, which must collect them."""

import os
import time

for _ in range(600):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)


def states() -> list:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    found.append(stat.read().rpartition(")")[2].split()[0])
            except OSError:
                pass
    return found


for _ in range(100):
    if states().count("Z") == 0:
        break
    time.sleep(0.05)
if states().count("Z") > 2:
    print("ESCAPED: zombies", states().count("Z"))
