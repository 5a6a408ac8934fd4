"""Leaves a process behind, detached by a double fork, and ends."""

import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(120)
    os._exit(0)
print("main ends")
