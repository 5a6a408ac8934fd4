"""A file in which every run writes the instant of its start, for Overnight and every peer.

It needs the standard library only, because peers live in an environment of their own. One mark
costs about two microseconds; `CLOCK_MONOTONIC` is one clock for all processes of a machine.
"""

import os
import struct
import time
from functools import cache
from pathlib import Path

VARIABLE = "OVERBENCH_MARKS"
ENTRY = struct.Struct("<QQ")


def mark(label: int = 0) -> None:
    """Write that a run starts now; `label` identifies it."""
    os.write(_opened(os.getpid()), ENTRY.pack(time.monotonic_ns(), label))


@cache
def _opened(_process: int) -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class Marks:
    """The marks of one round, as the benchmark reads them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def anew(cls, path: Path) -> "Marks":
        """Start with an empty file."""
        path.unlink(missing_ok=True)
        return cls(path)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that name the file to processes."""
        return {VARIABLE: str(self.path)}

    def count(self) -> int:
        """Return how many runs have started."""
        try:
            return self.path.stat().st_size // ENTRY.size
        except FileNotFoundError:
            return 0

    def read(self) -> list[tuple[float, int]]:
        """Return every mark as seconds of the monotonic clock and its label, oldest first."""
        data = self.path.read_bytes() if self.path.exists() else b""
        return sorted((nanoseconds / 1e9, label) for nanoseconds, label in ENTRY.iter_unpack(data))
