"""What every process of the pool has in hand, in memory that outlives it.

Only the main process sees one of its children die, and only the child knew what it was doing. A
run is blamed for the death of its process if its handler was at work at that moment, and for
nothing else: not for a lease that ran out while Postgres was away, nor for an end that could not be
recorded in time.
"""

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psutil
from billiard.process import current_process

from app.domain.claims import Claim
from app.domain.ids import TaskId

# More than a machine has; memory that nobody writes to costs nothing.
MOST_PROCESSES: Final = 256
# Whose page it is, how many claims stand on it, and whether a handler is at work.
_HEAD: Final = struct.Struct("=qi?")
_CLAIM: Final = struct.Struct("=16sq16s")
# As many as the settings let a bundle have.
_MOST_CLAIMS: Final = 500
_SIZE: Final = _HEAD.size + _CLAIM.size * _MOST_CLAIMS
NOTHING: Final = 0


@dataclass(frozen=True)
class Estate:
    """What a dead process left: its claims, and whether one of their handlers was at work."""

    claims: Sequence[Claim]
    handling: bool


class Holding:
    """One page per process of the pool; each writes its own, the main process reads the dead's."""

    def __init__(self) -> None:
        self._book = mmap.mmap(-1, _SIZE * MOST_PROCESSES)

    def take(self, claims: Sequence[Claim]) -> None:
        """Write down what this process has in hand from now on."""
        page = _own_page()
        if page is None:
            return
        for at, claim in enumerate(claims[:_MOST_CLAIMS]):
            place = page + _HEAD.size + at * _CLAIM.size
            held = claim.task_id.bytes, claim.epoch, claim.token.bytes
            _CLAIM.pack_into(self._book, place, *held)
        self._write(page, os.getpid(), min(len(claims), _MOST_CLAIMS), handling=False)

    def handle(self) -> None:
        """Note that a handler is at work: a death of this process is its doing."""
        self._note(handling=True)

    def rest(self) -> None:
        """Note that none is: whatever happens now, the runs are not to blame."""
        self._note(handling=False)

    def left_by_the_dead(self) -> Iterator[Estate]:
        """Yield what processes left that are gone, once."""
        for page in range(0, _SIZE * MOST_PROCESSES, _SIZE):
            pid, count, handling = _HEAD.unpack_from(self._book, page)
            if count == NOTHING or psutil.pid_exists(pid):
                continue
            yield Estate([self._claim(page, at) for at in range(count)], handling)
            # Only now: if the word could not be said, the next death says it too.
            self._write(page, pid, NOTHING, handling=False)

    def _note(self, *, handling: bool) -> None:
        page = _own_page()
        if page is not None:
            pid, count, _ = _HEAD.unpack_from(self._book, page)
            self._write(page, pid, count, handling=handling)

    def _write(self, page: int, pid: int, count: int, *, handling: bool) -> None:
        _HEAD.pack_into(self._book, page, pid, count, handling)

    def _claim(self, page: int, at: int) -> Claim:
        place = page + _HEAD.size + at * _CLAIM.size
        task_id, epoch, token = _CLAIM.unpack_from(self._book, place)
        return Claim(TaskId(UUID(bytes=task_id)), epoch, UUID(bytes=token))


def _own_page() -> int | None:
    """Return where this process writes; None for one more than the book has pages for."""
    index = getattr(current_process(), "index", 0)
    return index * _SIZE if index < MOST_PROCESSES else None


HOLDING: Final = Holding()
