"""`PerUserQueueManager` and `ConductorLockCleanup`: locks under the names of their design.

There are no lock files and no second bookkeeping. To acquire a task's lock is to claim the task
through the gate, with everything the gate checks; to release it is to end that claim.
"""

import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Row

from overnight_server.domain.claims import Run
from overnight_server.domain.errors import TaskNotFound, UserNotFound
from overnight_server.domain.ids import TaskId, UserId, parse_task
from overnight_server.domain.results import Interrupted, Result
from overnight_server.gate.claim import Terms, claim_one
from overnight_server.insight.locks import LockView, list_locks, lock_id_of
from overnight_server.insight.users import find_user
from overnight_server.maintenance.locks import Clocks, cleanup_stale, killing, release_lock
from overnight_server.outcome.heartbeat import Answer, heartbeat
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

LOOK_SECONDS = 0.1
RELEASED = "released"


class PerUserQueueManager:
    """A user's tasks, one at a time where they share a lock."""

    def __init__(self, db: Db, settings: Settings, *, capabilities: Sequence[str] = ()) -> None:
        self._db = db
        self._settings = settings
        self._capabilities = tuple(capabilities)
        self._holder = f"{socket.gethostname()}:{os.getpid()}:manager"
        self._held: dict[str, Run] = {}

    @property
    def lock_timeout(self) -> timedelta:
        """How long a lock lasts without renewal."""
        return timedelta(seconds=self._settings.per_user_serialization_lock_timeout_seconds)

    def acquire_lock(
        self, user: str, task_id: str, timeout: float = 30.0
    ) -> tuple[bool, str | None]:
        """Claim and start a user's task, waiting for its turn; (False, None) if it did not come."""
        user_id, wanted = known(self._db, user), parse_task(task_id)
        deadline = time.monotonic() + timeout
        while True:
            lock_id = self._try(user_id, wanted)
            if lock_id is not None:
                return True, lock_id
            left = deadline - time.monotonic()
            if left <= 0:
                return False, None
            time.sleep(min(LOOK_SECONDS, left))

    def renew_lock(self, lock_id: str) -> bool:
        """Keep a lock for another `lock_timeout`; False if it is no longer held, so stop."""
        run = self._held.get(lock_id)
        if run is None:
            return False
        return heartbeat(self._db, run.claim, lease=self.lock_timeout) is not Answer.LOST

    def release_lock(self, user: str, lock_id: str, result: Result | None = None) -> bool:
        """End the claim behind a lock this manager acquired; False if it was not held any more.

        With a result the task is settled by it. Without one it goes back to the queue unspent: who
        only lets go has not said that the work is done.
        """
        known(self._db, user)
        run = self._held.pop(lock_id, None)
        if run is None:
            return False
        return settle(self._db, run, result or Interrupted(RELEASED), agent=self._holder)

    def list_locks(self) -> list[LockView]:
        """Return every lock that is held."""
        return list_locks(self._db)

    def check(self, user: str) -> list[LockView]:
        """Return the locks a user's tasks hold."""
        return list_locks(self._db, user_id=known(self._db, user))

    def cleanup_all_stale_locks(self) -> int:
        """End every claim with a lock that was not renewed for `lock_timeout`; return how many."""
        with killing(self._settings) as kill:
            return cleanup_stale(
                self._db,
                max_age=self.lock_timeout,
                clocks=Clocks.of(self._settings),
                actor=self._holder,
                kill=kill,
            )

    def _try(self, user_id: UserId, task_id: TaskId) -> str | None:
        claimed = claim_one(
            self._db,
            holder=self._holder,
            terms=Terms.of(self._settings),
            user_id=user_id,
            task_id=task_id,
            capabilities=self._capabilities,
        )
        if claimed is None:
            if self._row(task_id).user_id != user_id:
                raise TaskNotFound
            return None
        run = start(self._db, claimed.claim, holder=self._holder, lease=self.lock_timeout)
        if run is None:
            return None
        since: datetime = self._row(task_id).claimed_at
        lock_id = lock_id_of(task_id, since)
        self._held[lock_id] = run
        return lock_id

    def _row(self, task_id: TaskId) -> Row[tuple[object, ...]]:
        row = self._db.atomically(
            lambda tx: tx.execute(statement("claim_of"), {"task_id": task_id}).one_or_none()
        )
        if row is None:
            raise TaskNotFound
        return row


class ConductorLockCleanup:
    """Taking locks back by hand; the deployment does it by itself when a lease runs out."""

    def __init__(self, db: Db, settings: Settings, *, actor: str) -> None:
        self._db = db
        self._settings = settings
        self._actor = actor

    def check_and_cleanup_conductor_locks(self, project: str) -> int:
        """Take back a project's locks that nobody renewed in time; return how many."""
        return self._cleanup(
            self._settings.per_user_serialization_lock_timeout_seconds, project=project
        )

    def cleanup_stale_task_locks(self, max_age_seconds: float = 3600) -> int:
        """Take back the locks that nobody renewed for so long; return how many."""
        return self._cleanup(max_age_seconds)

    def release_task_lock(self, user: str, task_id: str) -> Sequence[str]:
        """Take a task's locks from its holder by force; return the keys that came free."""
        with killing(self._settings) as kill:
            return release_lock(
                self._db,
                known(self._db, user),
                parse_task(task_id),
                actor=self._actor,
                kill=kill,
            ).keys

    def _cleanup(self, max_age_seconds: float, *, project: str | None = None) -> int:
        with killing(self._settings) as kill:
            return cleanup_stale(
                self._db,
                max_age=timedelta(seconds=max_age_seconds),
                clocks=Clocks.of(self._settings),
                actor=self._actor,
                kill=kill,
                project=project,
            )


def known(db: Db, name: str) -> UserId:
    """Return the user of this name."""
    found = find_user(db, name)
    if found is None:
        raise UserNotFound
    return found
