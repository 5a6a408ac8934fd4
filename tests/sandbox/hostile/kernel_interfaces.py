"""Calls large interfaces of the kernel, and those of other architectures."""

import ctypes
import errno
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
column = os.uname().machine == "aarch64"
CALLS = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "memfd_secret": (447, 447),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "personality": (135, 92),
}
for name, numbers in CALLS.items():
    result = libc.syscall(numbers[column], 0, 0, 0, 0, 0)
    error = ctypes.get_errno()
    if result >= 0 or error != errno.EPERM:
        print("ESCAPED:", name, result, errno.errorcode.get(error))
if not column:
    pid = os.fork()
    if pid == 0:
        libc.syscall(0x40000000 + 39)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGSYS:
        print("ESCAPED: a system call of x32")
