"""Kills workers at random instants and counts what is left of their sandboxes after a second.

This process adopts whatever a killed worker leaves (it is a subreaper), so every survivor is one of
its descendants. It prints one JSON object. Arguments: kind of sandbox, user of the worker, how many
instants, seconds to wait, seed.
"""

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from overnight_server.process_tree import become_subreaper, descendants, is_living
from overnight_worker.sandbox import SandboxKind, SandboxSpec, create_workspace, start_sandbox
from overnight_worker.sandbox.memory_group import create_memory_group
from overnight_worker.sandbox.workspace import remove_workspace
from tests.sandbox.worker_process import become

# Half of the instants are in the first part of a start, the others up to a running command.
EARLY_SECONDS = 0.02
LATE_SECONDS = 0.6
COMMAND = ("sh", "-c", "trap '' TERM; (trap '' TERM; sleep 300) & sleep 300")


def start_and_wait(sandbox_kind: SandboxKind, user: int, parent: Path, announce: int) -> None:
    """Be a worker: become the user, start a sandbox, wait for its end."""
    become(user)
    workspace = create_workspace(parent)
    os.write(announce, b"x")
    with start_sandbox(SandboxSpec(argv=COMMAND, workspace=workspace), sandbox_kind) as sandbox:
        sandbox.wait()


def strike(sandbox_kind: SandboxKind, user: int, parent: Path, delay: float) -> None:
    """Start a worker, and kill it some time after it has begun to start a sandbox."""
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            start_and_wait(sandbox_kind, user, parent, writer)
        finally:
            os._exit(1)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    time.sleep(delay)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def survivors(seconds: float) -> list[int]:
    """Return the processes that still live after some seconds, as soon as there is none."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        living = [pid for pid in descendants(os.getpid()) if is_living(pid)]
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(0.01)


def main() -> None:
    """Strike, and print how many sandboxes survived and how long the others took to end."""
    sandbox_kind, user = SandboxKind(sys.argv[1]), int(sys.argv[2])
    instants, seconds = int(sys.argv[3]), float(sys.argv[4])
    chance = random.Random(int(sys.argv[5]))
    become_subreaper()
    # It is imported before this process can no longer read it.
    parent = Path(tempfile.mkdtemp(prefix="overnight-killed-", dir="/var/tmp"))
    parent.chmod(0o711)
    if os.geteuid() == 0:
        os.chown(parent, user, user)
    survived, slowest = 0, 0.0
    for number in range(instants):
        delay = chance.uniform(0, EARLY_SECONDS if number % 2 else LATE_SECONDS)
        strike(sandbox_kind, user, parent, delay)
        began = time.monotonic()
        left = survivors(seconds)
        slowest = max(slowest, time.monotonic() - began)
        survived += bool(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        survivors(30)
    for workspace in parent.iterdir():
        remove_workspace(workspace)
    parent.rmdir()
    groups = left_groups()
    sys.stdout.write(json.dumps({"survived": survived, "slowest": slowest, "groups_left": groups}))


def left_groups() -> int:
    """Return how many cgroups killed workers left, after a later worker has made its own."""
    group = create_memory_group(64)
    if group is None:
        return 0
    group.remove()
    return sum(
        not Path("/proc", path.name.split("-")[2]).exists()
        for path in group.path.parent.glob("overnight-sandbox-*")
    )


if __name__ == "__main__":
    main()
