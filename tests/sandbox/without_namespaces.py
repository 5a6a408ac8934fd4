"""Probes for sandboxes where none can be made, and prints what was found as JSON.

The process enters a user namespace of its own, in which the kernel then allows no further ones (the
limit counts for that namespace alone). With the argument `single` the namespace has one user only.
"""

import ctypes
import dataclasses
import json
import os
import sys
from pathlib import Path

from overnight_server.settings import load
from overnight_server.telemetry import configure
from overnight_worker.sandbox import NoSandbox, choose_sandbox_kind, probe_all_kinds
from overnight_worker.sandbox_report import report_sandbox

CLONE_NEWUSER = 0x10000000


def enter_namespace(users: int) -> None:
    """Enter a namespace that has this many users, counted from 0 for root or the own one."""
    user, group = os.geteuid(), os.getegid()
    pid, (reader, writer) = os.getpid(), os.pipe()
    mapper = os.fork()
    if mapper == 0:
        # The map of another process is written from outside.
        os.read(reader, 1)
        if user:
            Path(f"/proc/{pid}/setgroups").write_text("deny")
        for kind, number in (("uid", user), ("gid", group)):
            Path(f"/proc/{pid}/{kind}_map").write_text(f"{number} {number} {users}")
        os._exit(0)
    assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
    os.write(writer, b"x")
    assert os.waitpid(mapper, 0)[1] == 0


def main() -> None:
    """Probe, and report as a worker does."""
    is_root = os.geteuid() == 0
    enter_namespace(65_536 if is_root and "single" not in sys.argv else 1)
    if "single" not in sys.argv:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    try:
        choose_sandbox_kind("strict")
        refusal = {}
    except NoSandbox as error:
        refusal = {"class": error.error_class, "reason": str(error), "remedy": error.remedy}
    answer = {
        "probes": [dataclasses.asdict(probe) for probe in probe_all_kinds()],
        "strict": refusal,
        "permissive": choose_sandbox_kind("permissive"),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    configure("logfmt", "info", "worker")
    report_sandbox(load({"OVERNIGHT_SANDBOX": "permissive"}))


if __name__ == "__main__":
    main()
