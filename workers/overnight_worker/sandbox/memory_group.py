"""A cgroup that limits the memory of one sandbox, where the worker may make one.

With cgroup v2 the worker's group, or the one above it, must be delegated to the worker and pass the
memory controller on; with v1 the worker must be root. Everywhere else process 1 of the sandbox
measures instead.
"""

import contextlib
import itertools
import os
from pathlib import Path
from typing import Final, NamedTuple

from overnight_worker.sandbox.spec import MEGABYTE

NAME_PREFIX: Final = "overnight-sandbox-"
_numbers = itertools.count(1)


class Files(NamedTuple):
    """What the files of a group are called."""

    limit: str
    limit_with_swap: str
    peak: str
    events: str
    # A process of one thread that writes 0 to it is in the group at once. For any other way the
    # kernel locks all processes of the machine, which takes it 5 to 20 ms. v2 has no such file.
    join_file: str | None


V1: Final = Files(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "tasks",
)
V2: Final = Files("memory.max", "memory.swap.max", "memory.peak", "memory.events", None)


class MemoryGroup:
    """One cgroup; `remove` must be called when the sandbox has ended."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files

    def add(self, pid: int) -> None:
        """Put a process into the group; what it starts from now on is in it too."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def open_join_file(self) -> int | None:
        """Return a descriptor with which a process of one thread can put itself into the group.

        It writes 0. Return None where only `add` puts a process into the group.
        """
        if self._files.join_file is None:
            return None
        return os.open(self.path / self._files.join_file, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def peak(self) -> int | None:
        """The most memory that the group has used, in bytes; None if the kernel does not say."""
        try:
            return int((self.path / self._files.peak).read_text())
        except (OSError, ValueError):
            return None

    @property
    def has_killed(self) -> bool:
        """Whether the kernel has killed a process because the group was at its limit."""
        try:
            rows = [
                line.split() for line in (self.path / self._files.events).read_text().split("\n")
            ]
        except OSError:
            return False
        return any(row[0] == "oom_kill" and int(row[1]) > 0 for row in rows if len(row) > 1)

    def remove(self) -> None:
        """Remove the group; one that still has processes stays until a later worker removes it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def create_memory_group(limit_mb: int) -> MemoryGroup | None:
    """Make a group with this limit; return None where the worker may not."""
    for parent, files in _parents():
        _remove_abandoned(parent)
        path = parent / f"{NAME_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            path.mkdir()
        except OSError:
            continue
        group = MemoryGroup(path, files)
        try:
            (path / files.limit).write_text(str(limit_mb * MEGABYTE))
        except OSError:
            group.remove()
            continue
        _limit_swap(path, files, limit_mb)
        return group
    return None


def _limit_swap(path: Path, files: Files, limit_mb: int) -> None:
    """Let swap add nothing to the limit, where the kernel counts swap."""
    with contextlib.suppress(OSError):
        swap = str(limit_mb * MEGABYTE) if files is V1 else "0"
        (path / files.limit_with_swap).write_text(swap)


def _parents() -> list[tuple[Path, Files]]:
    """Return the groups in which a new one could be made, the best first."""
    own = Path("/proc/self/cgroup").read_text()
    mounts = Path("/proc/self/mountinfo").read_text()
    return [
        (path, files)
        for path, files in find_parents(own, mounts)
        if os.access(path, os.W_OK) and (files is V1 or _passes_memory_on(path))
    ]


def find_parents(own_groups: str, mounts: str) -> list[tuple[Path, Files]]:
    """Return where the groups of this process are, from the two lists of the kernel.

    For v2 the group above comes too: a group with processes may not pass controllers on, so a
    service manager that delegates puts the worker one level below.
    """
    places: list[tuple[Path, Files]] = []
    roots = _cgroup_mounts(mounts)
    for line in own_groups.splitlines():
        _, controllers, path = line.split(":", 2)
        kind = "" if not controllers else "memory"
        if (controllers and "memory" not in controllers.split(",")) or kind not in roots:
            continue
        root, mount = roots[kind]
        relative = path.removeprefix(root if root != "/" else "").strip("/")
        group = Path(mount, relative)
        if kind == "memory":
            places.append((group, V1))
            continue
        places.append((group, V2))
        if relative:
            places.append((group.parent, V2))
    return places


def _cgroup_mounts(mounts: str) -> dict[str, tuple[str, str]]:
    """Return root and place of the mounts of v2 (key "") and of v1's memory controller."""
    cgroup_mounts: dict[str, tuple[str, str]] = {}
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, root, place = left.split()[:5]
        kind, _, options = right.split(None, 2)
        if kind == "cgroup2":
            cgroup_mounts[""] = (root, place)
        elif kind == "cgroup" and "memory" in options.split(","):
            cgroup_mounts["memory"] = (root, place)
    return cgroup_mounts


def _passes_memory_on(group: Path) -> bool:
    """Return whether groups below this one of v2 have the memory controller."""
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _remove_abandoned(parent: Path) -> None:
    """Remove the groups of workers that were killed; the kernel keeps those with processes."""
    for path in parent.glob(NAME_PREFIX + "*"):
        worker = path.name.removeprefix(NAME_PREFIX).partition("-")[0]
        if not Path("/proc", worker).exists():
            with contextlib.suppress(OSError):
                path.rmdir()
