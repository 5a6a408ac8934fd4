"""Leaves modules and libraries that a later process might load from the workspace."""

import os

PLANT = "open('/workspace/planted-was-run', 'w').close()\n"
for name in ("ctypes", "os", "select", "sitecustomize", "usercustomize", "resource", "signal"):
    with open(f"/workspace/{name}.py", "w") as file:
        file.write(PLANT)
for name in ("evil.so", "libc.so.6", ".pth", "python3", "true"):
    with open("/workspace/" + name, "w") as file:
        file.write("#!/bin/sh\ntouch /workspace/planted-was-run\n")
    os.chmod("/workspace/" + name, 0o755)
