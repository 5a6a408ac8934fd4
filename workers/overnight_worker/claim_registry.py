"""The claims of every pool process, in shared memory that outlives the process.

When a pool process dies, only the main process notices it, and only the dead process knew which
claims it held. So each pool process writes its claims into its own record of the registry, and for
each claim of a bundle how far it came, with the result of a run that has ended and is not recorded
yet. So a run that ends the process makes no other run of its bundle, whose user may be another,
start again. After the death the main process reads and clears the record before a new process gets
the same record.
"""

import ctypes
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import psutil
from billiard.process import current_process

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Result
from overnight_worker.kept_results import decode, encode

# More than any machine runs; records that are never written to take no memory.
MAX_PROCESSES: Final = 256
# The settings allow no larger bundle.
_MAX_CLAIMS: Final = 500
_NO_PROCESS: Final = 0
NO_FILE: Final = -1
# Room for the results of one bundle; a result that does not fit is recorded at once.
_RESULT_BYTES: Final = 256 * 1024


class ClaimStage(IntEnum):
    """How far a claim of a bundle has come."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class _ClaimEntry(ctypes.Structure):
    """One claim in shared memory, and where its result is once it has finished."""

    task_id: Any
    epoch: int
    token: Any
    stage: int
    start: int
    length: int
    _fields_ = (
        ("task_id", ctypes.c_ubyte * 16),
        ("epoch", ctypes.c_int64),
        ("token", ctypes.c_ubyte * 16),
        ("stage", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("length", ctypes.c_int64),
    )

    def write(self, claim: Claim) -> None:
        """Store a claim in this entry."""
        self.task_id[:] = claim.task_id.bytes
        self.epoch = claim.epoch
        self.token[:] = claim.token.bytes
        self.stage = ClaimStage.WAITING

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
    ended_by_worker: bool
    memory_exceeded: Any
    count: int
    entries: Any
    result_bytes: int
    results: Any
    _fields_ = (
        ("pid", ctypes.c_int64),
        ("in_handler_until", ctypes.c_double),
        ("ended_by_worker", ctypes.c_bool),
        ("memory_exceeded", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("entries", _ClaimEntry * _MAX_CLAIMS),
        ("result_bytes", ctypes.c_int64),
        ("results", ctypes.c_ubyte * _RESULT_BYTES),
    )

    def result_of(self, entry: _ClaimEntry) -> Result | None:
        """Return the result of a run that had ended; None if it had not, or cannot be read."""
        if entry.stage != ClaimStage.FINISHED:
            return None
        return decode(bytes(self.results[entry.start : entry.start + entry.length]))


@dataclass(frozen=True)
class OrphanedClaims:
    """The claims of a dead process, and what is known about the cause of its death.

    `claims` are those whose run had begun, `waiting` those whose handler was not called yet, and
    `finished` those whose run had ended, with its result. `in_handler`: a handler was running.
    `ended_by_worker`: the worker itself ended the runs. Neither: the cause is unknown.
    `out_of_memory`: the guard ended the process of a handler that used more memory than a run may.
    """

    claims: Sequence[Claim]
    in_handler: bool = False
    ended_by_worker: bool = False
    out_of_memory: bool = False
    waiting: Sequence[Claim] = ()
    finished: Sequence[tuple[Claim, Result]] = ()


class ClaimRegistry:
    """One record per pool process; a process that never called `register` has none."""

    def __init__(self) -> None:
        size = ctypes.sizeof(_ProcessRecord) * MAX_PROCESSES
        self._file = NO_FILE
        if hasattr(os, "memfd_create"):
            # A file in memory, because the guard of a process is another program.
            self._file = os.memfd_create("overnight-claims")
            os.ftruncate(self._file, size)
            weakref.finalize(self, os.close, self._file)
        self._records = (_ProcessRecord * MAX_PROCESSES).from_buffer(mmap.mmap(self._file, size))
        self._current: _ProcessRecord | None = None
        self._index = 0

    def register(self) -> None:
        """Take the record of this process; a process beyond the last record goes without."""
        index = getattr(current_process(), "index", 0)
        if index < MAX_PROCESSES:
            self._index, self._current = index, self._records[index]
            self._current.memory_exceeded = False
            self._current.pid = os.getpid()

    def memory_excess_place(self) -> tuple[int, int]:
        """Return the file and the offset of the byte that the guard of this process sets to 1.

        It does so before it ends a process that uses too much memory. The file is NO_FILE if this
        process has no record.
        """
        if self._current is None:
            return NO_FILE, 0
        offset = self._index * ctypes.sizeof(_ProcessRecord)
        return self._file, offset + int(_ProcessRecord.memory_exceeded.offset)

    def set_claims(self, claims: Sequence[Claim]) -> None:
        """Replace the claims of this process."""
        if self._current is None:
            return
        self._current.count = 0
        self._current.result_bytes = 0
        self.handler_ended()
        for entry, claim in zip(self._current.entries, claims, strict=False):
            entry.write(claim)
        self._current.count = min(len(claims), _MAX_CLAIMS)

    def run_begins(self, number: int) -> None:
        """Note that the handler of one of the claims, by its place, is called next."""
        if self._current is not None and number < self._current.count:
            self._current.entries[number].stage = ClaimStage.RUNNING

    def keep_result(self, number: int, result: Result) -> bool:
        """Keep the result of one of the claims until it is recorded; False if that is impossible.

        Then the caller must record it before the next handler is called.
        """
        record = self._current
        if record is None or number >= record.count:
            return True
        encoded = encode(result)
        if encoded is None or record.result_bytes + len(encoded) > _RESULT_BYTES:
            return False
        entry, start = record.entries[number], record.result_bytes
        ctypes.memmove(ctypes.addressof(record.results) + start, encoded, len(encoded))
        entry.start, entry.length = start, len(encoded)
        record.result_bytes = start + len(encoded)
        entry.stage = ClaimStage.FINISHED
        return True

    def handler_started(self, *, until: float) -> None:
        """Note that a handler runs: if this process dies, the handler is to blame.

        After `until`, an instant of the monotonic clock that all processes of a machine share,
        the watchdog has killed the process instead.
        """
        if self._current is not None:
            self._current.in_handler_until = until

    def handler_ended(self, *, ended_by_worker: bool = False) -> None:
        """Note that no handler runs: if this process dies now, no run is to blame.

        With `ended_by_worker` the worker ends the runs itself, and they spend no attempt either.
        """
        if self._current is not None:
            self._current.ended_by_worker = ended_by_worker
            self._current.in_handler_until = 0.0

    @property
    def has_dead_process(self) -> bool:
        """Whether a process that registered is gone and its claims are not collected yet."""
        return any(
            record.pid != _NO_PROCESS and not psutil.pid_exists(record.pid)
            for record in self._records
        )

    def has_claims(self) -> bool:
        """Return whether any pool process holds a claim."""
        return any(record.pid != _NO_PROCESS and record.count for record in self._records)

    def process_of(self, claim: Claim) -> int | None:
        """Return the id of the pool process that holds a claim; None if none does."""
        for record in self._records:
            if record.pid != _NO_PROCESS and any(
                entry.read() == claim for entry in record.entries[: record.count]
            ):
                return record.pid
        return None

    def collect_orphaned_claims(self) -> list[OrphanedClaims]:
        """Clear the records of processes that are gone; return the claims they held."""
        orphaned = []
        for record in self._records:
            if record.pid == _NO_PROCESS or psutil.pid_exists(record.pid):
                continue
            if record.count:
                orphaned.append(_read(record))
            record.count = 0
            record.pid = _NO_PROCESS
        return orphaned


def _read(record: _ProcessRecord) -> OrphanedClaims:
    """Return what a dead process has left behind."""
    begun, waiting, finished = [], [], []
    entries = record.entries[: record.count]
    # The only claim of a message is settled in one way, whether its handler was called or not.
    is_bundle = len(entries) > 1
    for entry in entries:
        result = record.result_of(entry)
        if result is not None:
            finished.append((entry.read(), result))
        elif is_bundle and entry.stage == ClaimStage.WAITING:
            waiting.append(entry.read())
        else:
            begun.append(entry.read())
    in_handler = time.monotonic() < record.in_handler_until
    return OrphanedClaims(
        begun,
        in_handler=in_handler,
        ended_by_worker=record.ended_by_worker,
        out_of_memory=in_handler and record.memory_exceeded,
        waiting=tuple(waiting),
        finished=tuple(finished),
    )


CLAIM_REGISTRY: Final = ClaimRegistry()
