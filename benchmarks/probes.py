"""The state of the machine during a measurement: its disk, and what other programs used."""

import os
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

import psutil

WRITES = 30
PAGE = b"\0" * 8192


class ProbeDict(TypedDict):
    """A probe as it stands in a results file."""

    who: str
    fsync_ms: float
    own_cores: float
    foreign_cores: float
    seconds: float


@dataclass
class Probe:
    """One period: milliseconds per fsync, and the cores that the benchmark and others used."""

    who: str
    fsync_ms: float = 0.0
    own_cores: float = 0.0
    foreign_cores: float = 0.0
    seconds: float = 0.0

    def as_row(self) -> ProbeDict:
        """Return the form for the results file."""
        return {
            "who": self.who,
            "fsync_ms": round(self.fsync_ms, 3),
            "own_cores": round(self.own_cores, 3),
            "foreign_cores": round(self.foreign_cores, 3),
            "seconds": round(self.seconds, 3),
        }


class Watch:
    """Probe the machine for the length of a block; the fsync probe runs before it.

    Foreign load is what all processors did less what this process and its descendants did, so it
    counts helpers, editors and neighbours, and is the first thing to look at when figures differ.
    """

    def __init__(self, who: str, directory: Path) -> None:
        self.probe = Probe(who, fsync_ms=fsync_ms(directory))

    def __enter__(self) -> Self:
        self._began = (time.monotonic(), machine_seconds(), own_seconds())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        began, machine, own = self._began
        self.probe.seconds = max(time.monotonic() - began, 1e-9)
        used = own_seconds() - own
        self.probe.own_cores = used / self.probe.seconds
        others = machine_seconds() - machine - used
        self.probe.foreign_cores = max(0.0, others / self.probe.seconds)


def fsync_ms(directory: Path, writes: int = WRITES) -> float:
    """Return the median milliseconds of an fsync of one page below `directory`."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(writes):
            began = time.perf_counter()
            os.pwrite(file.fileno(), PAGE, 0)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def machine_seconds() -> float:
    """Return the processor seconds that the whole machine has used so far."""
    times = psutil.cpu_times()
    # Guest time is part of user time already.
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def own_seconds() -> float:
    """Return the processor seconds of this process and all its descendants, ended ones too."""
    total = 0.0
    ourselves = psutil.Process()
    for process in [ourselves, *ourselves.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
