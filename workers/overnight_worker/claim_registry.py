"""The claims of every pool process, in shared memory that outlives the process.

When a pool process dies, only the main process notices it, and only the dead process knew which
claims it held. So each pool process writes its claims into its own record of the registry. After
its death the main process reads and clears the record before a new process gets the same record.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psutil
from billiard.process import current_process

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId

# More than any machine runs; records that are never written to take no memory.
MAX_PROCESSES: Final = 256
# The settings allow no larger bundle.
_MAX_CLAIMS: Final = 500
_NO_PROCESS: Final = 0


class _ClaimEntry(ctypes.Structure):
    """One claim in shared memory."""

    task_id: Any
    epoch: int
    token: Any
    _fields_ = (
        ("task_id", ctypes.c_ubyte * 16),
        ("epoch", ctypes.c_int64),
        ("token", ctypes.c_ubyte * 16),
    )

    def write(self, claim: Claim) -> None:
        """Store a claim in this entry."""
        self.task_id[:] = claim.task_id.bytes
        self.epoch = claim.epoch
        self.token[:] = claim.token.bytes

    def read(self) -> Claim:
        """Return the claim of this entry."""
        task_id, token = UUID(bytes=bytes(self.task_id)), UUID(bytes=bytes(self.token))
        return Claim(TaskId(task_id), self.epoch, token)


class _ProcessRecord(ctypes.Structure):
    """The claims of one process, and until when a handler is to blame for its death.

    A process may die between any two writes, so entries are written before `count` includes them.
    """

    pid: int
    in_handler_until: float
    taken_away: bool
    count: int
    entries: Any
    _fields_ = (
        ("pid", ctypes.c_int64),
        ("in_handler_until", ctypes.c_double),
        ("taken_away", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("entries", _ClaimEntry * _MAX_CLAIMS),
    )


@dataclass(frozen=True)
class OrphanedClaims:
    """The claims of a dead process, and what is known about the cause of its death.

    `in_handler`: a handler was running. `taken_away`: the worker itself ended the runs. Neither:
    the cause is unknown.
    """

    claims: Sequence[Claim]
    in_handler: bool = False
    taken_away: bool = False


class ClaimRegistry:
    """One record per pool process; a process that never called `register` has none."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, ctypes.sizeof(_ProcessRecord) * MAX_PROCESSES)
        self._records = (_ProcessRecord * MAX_PROCESSES).from_buffer(memory)
        self._current: _ProcessRecord | None = None

    def register(self) -> None:
        """Take the record of this process; a process beyond the last record goes without."""
        index = getattr(current_process(), "index", 0)
        if index < MAX_PROCESSES:
            self._current = self._records[index]
            self._current.pid = os.getpid()

    def set_claims(self, claims: Sequence[Claim]) -> None:
        """Replace the claims of this process."""
        if self._current is None:
            return
        self._current.count = 0
        self.handler_ended()
        for entry, claim in zip(self._current.entries, claims, strict=False):
            entry.write(claim)
        self._current.count = min(len(claims), _MAX_CLAIMS)

    def handler_started(self, *, until: float) -> None:
        """Note that a handler runs: if this process dies, the handler is to blame.

        After `until`, an instant of the monotonic clock that all processes of a machine share,
        the watchdog has killed the process instead.
        """
        if self._current is not None:
            self._current.in_handler_until = until

    def handler_ended(self, *, taken_away: bool = False) -> None:
        """Note that no handler runs: if this process dies now, no run is to blame.

        With `taken_away` the worker is ending the runs itself, and they spend no attempt either.
        """
        if self._current is not None:
            self._current.taken_away = taken_away
            self._current.in_handler_until = 0.0

    def collect_orphaned_claims(self) -> list[OrphanedClaims]:
        """Clear the records of processes that are gone; return the claims they held."""
        orphaned = []
        for record in self._records:
            if record.pid == _NO_PROCESS or psutil.pid_exists(record.pid):
                continue
            if record.count:
                claims = [entry.read() for entry in record.entries[: record.count]]
                in_handler = time.monotonic() < record.in_handler_until
                orphaned.append(OrphanedClaims(claims, in_handler, record.taken_away))
            record.count = 0
            record.pid = _NO_PROCESS
        return orphaned


CLAIM_REGISTRY: Final = ClaimRegistry()
