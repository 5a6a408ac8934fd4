"""Runs a command without any protection, where the operator permits it and no sandbox can be made.

It takes the place of process 1 and understands the same messages. There is no namespace that the
kernel could end: this program adopts the orphans of the command and kills every descendant when the
command has ended or the worker is gone. A command can escape that, for it may kill this program.

The worker sends this module through a descriptor, with `pid1`.
"""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
WORKER_GONE = 81
FAILED = 83
PAUSE = 0.01


def main(config: dict[str, Any], pid1: dict[str, Callable[..., Any]]) -> NoReturn:
    """Start the command and wait for its end, with the functions of process 1 that fit."""
    channel = config["channel"]
    if pid1["call_c_library"]("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        os._exit(FAILED)
    pid1["join_group"](config["join_file"])
    wakeups = pid1["prepare_signals"]()
    os.write(channel, b"ready")
    if receive(channel) != b"go":
        os._exit(WORKER_GONE)
    command = pid1["start_command"](config)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wakeups, select.POLLIN)
    while True:
        descriptors = [descriptor for descriptor, _ in poll.poll()]
        if wakeups in descriptors:
            os.read(wakeups, 4096)
            reap(command, channel)
        if channel in descriptors:
            if receive(channel) != b"terminate":
                kill_descendants()
                os._exit(WORKER_GONE)
            signal_all(descendants(), signal.SIGTERM)


def receive(channel: int) -> bytes:
    """Return the next message, empty if the worker is gone."""
    try:
        return os.read(channel, 64)
    except OSError:
        return b""


def reap(command: int, channel: int) -> None:
    """Collect every process that has ended; with the command, end the others and this one."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == command:
            kill_descendants()
            code = os.waitstatus_to_exitcode(status)
            os.write(channel, f"{'exit' if code >= 0 else 'signal'} {abs(code)} 0".encode())
            os._exit(0)
        if pid == 0:
            return


def kill_descendants() -> None:
    """Kill what is below this process, again until nothing is: more may be born meanwhile."""
    while pids := descendants():
        signal_all(pids, signal.SIGKILL)
        time.sleep(PAUSE)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def descendants() -> list[int]:
    """Return every process below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent_of(name), []).append(int(name))
    descendant_pids, unvisited = [], [os.getpid()]
    while unvisited:
        below = children.get(unvisited.pop(), [])
        descendant_pids += below
        unvisited += below
    return descendant_pids


def parent_of(pid: str) -> int:
    """Return the parent of a process, 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name in parentheses may contain anything, so the fields are counted behind it.
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0
