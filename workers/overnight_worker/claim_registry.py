"""What every process of the pool has in hand, in memory that outlives it.

Only the main process sees one of its children die, and only the child knew what it was doing. So
each child keeps a page which nobody else writes on, and when it is gone the main process takes the
page away, before another child is given its place.
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

# More than a machine has; memory that nobody writes to costs nothing.
MOST_PROCESSES: Final = 256
# As many as the settings let a bundle have.
_MOST_CLAIMS: Final = 500
_NOBODY: Final = 0


class _Entry(ctypes.Structure):
    """One claim, as it stands on a page."""

    task_id: Any
    epoch: int
    token: Any
    _fields_ = (
        ("task_id", ctypes.c_ubyte * 16),
        ("epoch", ctypes.c_int64),
        ("token", ctypes.c_ubyte * 16),
    )

    def write(self, claim: Claim) -> None:
        """Write a claim down."""
        self.task_id[:] = claim.task_id.bytes
        self.epoch = claim.epoch
        self.token[:] = claim.token.bytes

    def read(self) -> Claim:
        """Read it again."""
        task_id, token = UUID(bytes=bytes(self.task_id)), UUID(bytes=bytes(self.token))
        return Claim(TaskId(task_id), self.epoch, token)


class _Page(ctypes.Structure):
    """Whose page it is, until when its death is a handler's doing, and the claims in hand.

    A process may die between any two writes, so what is counted is written before it counts.
    """

    pid: int
    handling_until: float
    taken_away: bool
    count: int
    entries: Any
    _fields_ = (
        ("pid", ctypes.c_int64),
        ("handling_until", ctypes.c_double),
        ("taken_away", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("entries", _Entry * _MOST_CLAIMS),
    )


@dataclass(frozen=True)
class OrphanedClaims:
    """What a dead process left: its claims, and what it died of.

    Of a handler that was at work, or of us, who took its runs away; else nobody knows.
    """

    claims: Sequence[Claim]
    handling: bool = False
    taken_away: bool = False


class ClaimRegistry:
    """One page per process of the pool; who never opened one, like the main process, has none."""

    def __init__(self) -> None:
        book = mmap.mmap(-1, ctypes.sizeof(_Page) * MOST_PROCESSES)
        self._pages = (_Page * MOST_PROCESSES).from_buffer(book)
        self._own: _Page | None = None

    def open(self) -> None:
        """Begin the page of this process; one more than there are pages for goes without."""
        index = getattr(current_process(), "index", 0)
        if index < MOST_PROCESSES:
            self._own = self._pages[index]
            self._own.pid = os.getpid()

    def take(self, claims: Sequence[Claim]) -> None:
        """Write down what this process has in hand from now on."""
        if self._own is None:
            return
        self._own.count = 0
        self.rest()
        for entry, claim in zip(self._own.entries, claims, strict=False):
            entry.write(claim)
        self._own.count = min(len(claims), _MOST_CLAIMS)

    def handle(self, *, until: float) -> None:
        """Note that a handler is at work: a death of this process is its doing.

        From an instant of the monotonic clock on, which the processes of a machine share, it is
        the watchdog's.
        """
        if self._own is not None:
            self._own.handling_until = until

    def rest(self, *, taken_away: bool = False) -> None:
        """Note that none is: whatever happens now, the runs are not to blame.

        If we take them away, they are not to spend anything either.
        """
        if self._own is not None:
            self._own.taken_away = taken_away
            self._own.handling_until = 0.0

    def left_by_the_dead(self) -> list[OrphanedClaims]:
        """Take away the pages of processes that are gone; return what they had in hand."""
        estates = []
        for page in self._pages:
            if page.pid == _NOBODY or psutil.pid_exists(page.pid):
                continue
            if page.count:
                claims = [entry.read() for entry in page.entries[: page.count]]
                handling = time.monotonic() < page.handling_until
                estates.append(OrphanedClaims(claims, handling, page.taken_away))
            page.count = 0
            page.pid = _NOBODY
        return estates


CLAIM_REGISTRY: Final = ClaimRegistry()
