"""Forks until the kernel refuses; 300 processes at most."""

import os
import time

count = 0
while count < 300:
    try:
        pid = os.fork()
    except OSError as error:
        print("stopped", error.strerror)
        break
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    count += 1
print("processes", count)
if count >= 64:
    print("ESCAPED: more processes than the limit")
