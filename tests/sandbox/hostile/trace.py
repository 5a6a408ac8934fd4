"""Tries to trace and to read process 1, its parent."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
for request in (PTRACE_ATTACH, PTRACE_SEIZE):
    if libc.ptrace(request, 1, 0, 0) == 0:
        print("ESCAPED: traces process 1")
for name in ("mem", "maps", "environ", "fd/0", "root/etc/shadow", "cwd/..", "ns/mnt", "auxv"):
    try:
        descriptor = os.open("/proc/1/" + name, os.O_RDONLY)
        if name != "maps" and name != "auxv" and os.read(descriptor, 16):
            print("ESCAPED: reads", name)
    except OSError as error:
        print(name, error.strerror)
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
PIDFD_GETFD = 438
if libc.syscall(PROCESS_VM_READV, 1, 0, 0, 0, 0, 0) >= 0:
    print("ESCAPED: reads the memory of process 1")
pidfd = os.pidfd_open(1)
for number in range(16):
    if libc.syscall(PIDFD_GETFD, pidfd, number, 0) >= 0:
        print("ESCAPED: takes descriptor", number)
