"""The processes below a process: find them, adopt them when they are orphaned, end them.

Guards import this module without site-packages, so it uses the standard library only.
"""

import collections
import contextlib
import ctypes
import os
import signal
from pathlib import Path

# Numbers from the Linux headers (prctl.h), which have no Python names.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDED = frozenset({"Z", "X"})
CHILD_LIST = "children"


def signal_on_parent_death(signal_number: int) -> None:
    """Have Linux send this signal when the parent process ends; other systems cannot do this."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        prctl(PR_SET_PDEATHSIG, signal_number)


def become_subreaper() -> None:
    """Become the parent of every orphaned descendant, where the system can do this."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, *arguments: int) -> None:
    """Call prctl of Linux, for which Python has no function; raise OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [*arguments, 0, 0, 0, 0][:4]
    if libc.prctl(option, *(ctypes.c_ulong(number) for number in padded)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def descendants(ancestor: int) -> list[int]:
    """Return the pids of all descendants, ended ones that were not reaped yet included.

    One that is born or orphaned meanwhile may be missing. Who must find all of them is a subreaper
    and asks again until it has no child left.
    """
    children_of = children if _has_child_lists() else _read_process_table().__getitem__
    pids: list[int] = []
    unvisited = [ancestor]
    while unvisited:
        below = children_of(unvisited.pop())
        pids += below
        unvisited += below
    return pids


def children(pid: int) -> list[int]:
    """Return the pids of the direct children, ended ones that were not reaped yet included."""
    if not _has_child_lists():
        return _read_process_table()[pid]
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, _read(thread / CHILD_LIST).split())
    return pids


def is_living(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    state = _stat_fields(pid)[:1]
    return bool(state) and state[0] not in ENDED


def kill_living(pids: list[int]) -> int:
    """Kill the processes that have not ended; return how many of them there were."""
    living = [pid for pid in pids if is_living(pid)]
    for pid in living:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(living)


def reap_children() -> tuple[dict[int, int], bool]:
    """Collect the ended children of this process, adopted ones too, without waiting.

    Return the wait status of each by its pid, and whether any child is left.
    """
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses, False
        if pid == 0:
            return statuses, True
        statuses[pid] = status


def _has_child_lists() -> bool:
    """Return whether this kernel lists the children of a thread; most do."""
    return Path("/proc/thread-self", CHILD_LIST).exists()


def _read_process_table() -> dict[int, list[int]]:
    """Return the children of every process, for kernels without lists of children."""
    below: dict[int, list[int]] = collections.defaultdict(list)
    with contextlib.suppress(FileNotFoundError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
                below[int(fields[1])].append(int(entry.name))
    return below


def _stat_fields(pid: int) -> list[str]:
    """Return what Linux tells about a process from its state on; empty if it does not exist."""
    # The name in parentheses may contain anything, so the fields are counted behind it.
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; empty if the process has ended meanwhile."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
