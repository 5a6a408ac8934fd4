"""Looks for the worker's variables, in its own environment and in that of every process."""

import glob
import os

secret = os.environ.pop("CANARY")
if any(secret in value for value in os.environ.values()):
    print("ESCAPED: inherited")
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
    if path.startswith((f"/proc/{os.getpid()}/", "/proc/self/", "/proc/thread-self/")):
        continue
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        print(path, error.strerror)
        continue
    print(path, content[:80])
    if secret.encode() in content or b"OVERNIGHT" in content:
        print("ESCAPED:", path)
if os.path.exists("/proc/1/environ") and os.access("/proc/1/environ", os.R_OK):
    with open("/proc/1/environ", "rb") as file:
        try:
            if file.read():
                print("ESCAPED: the environment of process 1")
        except OSError:
            pass
