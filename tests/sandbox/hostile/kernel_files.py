"""Opens files of the kernel for writing; it never writes a byte."""

import os

PATHS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/self/uid_map",
    "/proc/self/setgroups",
    "/proc/1/oom_score_adj",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
)
for path in PATHS:
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("ESCAPED: could write", path)
    except OSError as error:
        print(path, error.strerror)
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms"):
    try:
        content = os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 64)
        if content.strip(b"0 TtAaDdRrBb\n") and path != "/proc/kallsyms":
            print("ESCAPED: read", path)
    except OSError as error:
        print(path, error.strerror)
