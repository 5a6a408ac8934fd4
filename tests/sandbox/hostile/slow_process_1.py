"""Tries to slow down or to limit process 1, which has the same user."""

import ctypes
import os
import resource

libc = ctypes.CDLL(None, use_errno=True)
threads = [1, *(int(name) for name in os.listdir("/proc/1/task"))]
for thread in threads:
    try:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        print("ESCAPED: process 1 is idle")
    except OSError as error:
        print("scheduler", error.strerror)
    try:
        os.setpriority(os.PRIO_PROCESS, thread, 19)
        print("ESCAPED: process 1 is nice")
    except OSError as error:
        print("priority", error.strerror)
    try:
        resource.prlimit(thread, resource.RLIMIT_NOFILE, (1, 1))
        print("ESCAPED: process 1 has no descriptors")
    except OSError as error:
        print("limit", error.strerror)
for kind, who in ((os.PRIO_PGRP, 1), (os.PRIO_USER, 0), (os.PRIO_PGRP, 0)):
    try:
        os.setpriority(kind, who, 19)
        print("ESCAPED: a group of processes is nice", kind)
    except OSError as error:
        print("group", error.strerror)
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
if libc.syscall(IOPRIO_SET, 1, 1, 3 << 13) >= 0:
    print("ESCAPED: process 1 waits for disks")
os.nice(1)
