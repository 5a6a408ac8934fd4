"""Hides memory in segments of System V that no process has attached; 640 MB at most."""

import ctypes
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
size = 16 << 20
for number in range(40):
    segment = libc.shmget(number + 1, size, 0o1600)
    if segment < 0:
        print("refused", ctypes.get_errno())
        break
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, size)
    libc.shmdt(ctypes.c_void_p(address))
    time.sleep(0.05)
else:
    time.sleep(2)
    print("ESCAPED: 640 MB in segments")
