"""Looks for keys of the worker, and tries to leave one."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
column = os.uname().machine == "aarch64"
KEYCTL, ADD_KEY, REQUEST_KEY = ((250, 219)[column], (248, 217)[column], (249, 218)[column])
name = os.environ["CANARY"].encode()
for ring in (-1, -2, -3, -4, -5):
    if libc.syscall(KEYCTL, 10, ring, b"user", name, 0) >= 0:
        print("ESCAPED: found the worker's key")
    if libc.syscall(ADD_KEY, b"user", b"left-behind", b"x", 1, ring) >= 0:
        print("ESCAPED: left a key in", ring)
if libc.syscall(REQUEST_KEY, b"user", name, None, -3) >= 0:
    print("ESCAPED: requested the worker's key")
if libc.syscall(KEYCTL, 1, None) >= 0:
    print("ESCAPED: joined a keyring")
