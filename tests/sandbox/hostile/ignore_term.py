"""Five processes in sessions of their own ignore SIGTERM."""

import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        time.sleep(120)
        os._exit(0)
print("deaf", flush=True)
time.sleep(120)
