"""The runs of one message: carried out one after the other, recorded together."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.results import Interrupted, Result
from overnight_server.store.db import Db
from overnight_worker.record_results import Follow, settle_by


@dataclass(frozen=True, eq=False)
class Done:
    """A run that is over, and how it ended."""

    run: Run
    result: Result


class Bundle:
    """Runs that wait for their turn, and runs that wait to be recorded.

    A bundle is worth well under a second. When one of its runs turns out slow, `shed` records
    what is over and gives back what has not begun, so that nobody waits for the slow one; it
    may be called from another thread than the one that runs.
    """

    def __init__(self, db: Db, runs: Sequence[Run]) -> None:
        self._db = db
        self._lock = Lock()
        self._waiting = deque(runs)
        self._done: list[Done] = []
        self._recording: set[Done] = set()

    def next(self) -> Run | None:
        """Return the run whose turn it is, or None when all had theirs."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def end(self, run: Run, result: Result | None) -> None:
        """Keep how a run ended until it is recorded; None if it is not ours to record."""
        if result is not None:
            with self._lock:
                self._done.append(Done(run, result))

    @property
    def has_company(self) -> bool:
        """Whether other runs depend on how long the current one takes."""
        return bool(self._waiting or self._done)

    @property
    def unrecorded(self) -> list[Claim]:
        """The runs that ended and are not recorded yet; until they are, they need a lease."""
        with self._lock:
            return [one.run.claim for one in (*self._done, *self._recording)]

    def record(self, *, deadline: float, then: Follow | None = None) -> bool:
        """Record what is over, and what is to follow; True if any of it counted."""
        with self._lock:
            done, self._done = self._done, []
            self._recording.update(done)
        try:
            ends = [(one.run, one.result) for one in done]
            return bool(ends) and settle_by(self._db, ends, deadline=deadline, then=then)
        finally:
            with self._lock:
                self._recording.difference_update(done)

    def shed(self, *, deadline: float, reason: str = "slow_bundle") -> None:
        """Give back the runs that have not begun, and record those that are over."""
        with self._lock:
            self._done += [Done(run, Interrupted(reason, ran_seconds=0.0)) for run in self._waiting]
            self._waiting.clear()
        self.record(deadline=max(deadline, time.monotonic()))
