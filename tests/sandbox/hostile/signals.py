"""Sends every signal to process 1 and to everything that it can reach."""

import os
import signal
import time

for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.3)
os.kill(1, 0)
# The number of a thread names its process: signals to those of process 1 are ignored too.
own = {os.getpid(), *(int(name) for name in os.listdir("/proc/1/task"))}
for pid in range(2, 400):
    if pid not in own:
        try:
            os.kill(pid, signal.SIGKILL)
            print("ESCAPED: killed", pid)
        except OSError:
            pass
for group in (0, 1):
    try:
        if group:
            os.killpg(group, signal.SIGSTOP)
    except OSError:
        pass
with open("/proc/1/stat") as stat:
    if stat.read().rpartition(")")[2].split()[0] in "TZ":
        print("ESCAPED: process 1 is stopped")
print("alive")
