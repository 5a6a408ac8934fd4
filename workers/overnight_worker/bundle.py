"""The runs of one message: carried out one after the other, recorded together."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.results import Interrupted, Result
from overnight_server.store.db import Db
from overnight_worker.record_results import NextClaim, settle_by


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run that has ended, and its result."""

    run: Run
    result: Result


class Bundle:
    """Runs that have not started yet, and finished runs that are not recorded yet.

    A bundle should take well under a second. If one of its runs is slow, `release_others` records
    the finished runs and hands back those that have not started, so that none waits for the slow
    one. `release_others` may be called from another thread than the one that runs the handlers.
    """

    def __init__(
        self, db: Db, runs: Sequence[Run], *, flush_logs: Callable[[], None] | None = None
    ) -> None:
        self._db = db
        self._flush_logs = flush_logs
        self._lock = Lock()
        self._waiting = deque(runs)
        self._finished: list[FinishedRun] = []
        self._recording: set[FinishedRun] = set()

    def next_run(self) -> Run | None:
        """Return the next run to carry out, or None when none is left."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def add_result(self, run: Run, result: Result | None) -> None:
        """Keep a run's result until it is recorded; None means that there is nothing to record."""
        if result is not None:
            with self._lock:
                self._finished.append(FinishedRun(run, result))

    @property
    def has_others(self) -> bool:
        """Whether other runs wait until the current one ends."""
        return bool(self._waiting or self._finished)

    @property
    def unrecorded_claims(self) -> list[Claim]:
        """The claims of finished runs that are not recorded yet; they still need their lease."""
        with self._lock:
            return [finished.run.claim for finished in (*self._finished, *self._recording)]

    def record(self, *, deadline: float, next_claim: NextClaim | None = None) -> bool:
        """Record the finished runs; True if any was recorded while it still held its claim.

        `next_claim` claims the slot's next tasks in the same transaction. The logs of the runs are
        written first, because a claim that has ended can write no more.
        """
        with self._lock:
            finished, self._finished = self._finished, []
            self._recording.update(finished)
        try:
            if finished and self._flush_logs is not None:
                self._flush_logs()
            results = [(each.run, each.result) for each in finished]
            return bool(results) and settle_by(
                self._db, results, deadline=deadline, next_claim=next_claim
            )
        finally:
            with self._lock:
                self._recording.difference_update(finished)

    def release_others(self, *, deadline: float, reason: str = "slow_bundle") -> None:
        """Hand back the runs that have not started, and record those that have finished."""
        with self._lock:
            self._finished += [
                FinishedRun(run, Interrupted(reason, ran_seconds=0.0)) for run in self._waiting
            ]
            self._waiting.clear()
        self.record(deadline=max(deadline, time.monotonic()))
