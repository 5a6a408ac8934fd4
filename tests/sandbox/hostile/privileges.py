"""Tries to get privileges back: capabilities, other users, set-user-id programs."""

import ctypes
import os
import shutil
import subprocess

with open("/proc/self/status") as status:
    fields = dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(fields[name], 16):
        print("ESCAPED:", name, fields[name])
if fields["NoNewPrivs"] != "1" or fields["Seccomp"] != "2":
    print("ESCAPED: no filter")
libc = ctypes.CDLL(None, use_errno=True)
for call in (os.setuid, os.setgid, os.seteuid):
    for user in (0, 1, 1000):
        try:
            call(user)
            print("ESCAPED: became", user)
        except OSError:
            pass
try:
    os.setgroups([0])
    print("ESCAPED: joined group 0")
except OSError:
    pass
for program in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd"):
    if os.path.exists(program):
        result = subprocess.run([program, "--help"], capture_output=True)
        print(program, result.returncode)
shutil.copy("/usr/bin/env", "/workspace/own-env")
os.chmod("/workspace/own-env", 0o6755)
users = subprocess.run(["/workspace/own-env", "id", "-u"], capture_output=True, text=True).stdout
if users.strip() != "65534":
    print("ESCAPED: a set-user-id program is user", users)
