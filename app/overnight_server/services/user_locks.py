"""`PerUserQueueManager` and `ConductorLockCleanup` (interfaces of the user locks document).

There are no lock files. To acquire a task's lock is to claim and start the task through the gate;
to release the lock is to end that claim.
"""

import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Row

from overnight.errors import TaskNotFound, UserNotFound
from overnight.models.admin import UserLock
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import TaskId, UserId, parse_task
from overnight_server.domain.results import Interrupted, Result
from overnight_server.gate.claim import ClaimSettings, claim_one
from overnight_server.insight.locks import list_locks, lock_id_of
from overnight_server.insight.users import find_user
from overnight_server.maintenance.locks import LeaseTimes, cleanup_stale, killing, release_lock
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

RETRY_SECONDS = 0.1
RELEASED = "released"


class PerUserQueueManager:
    """Takes, renews and gives back the locks of users' tasks."""

    def __init__(self, db: Db, settings: Settings, *, capabilities: Sequence[str] = ()) -> None:
        self._db = db
        self._settings = settings
        self._capabilities = tuple(capabilities)
        self._holder = f"{socket.gethostname()}:{os.getpid()}:manager"
        self._runs_by_lock: dict[str, Run] = {}

    @property
    def lock_timeout(self) -> timedelta:
        """How long a lock is kept without renewal."""
        return timedelta(seconds=self._settings.per_user_serialization_lock_timeout_seconds)

    def acquire_lock(
        self, user: str, task_id: str, timeout: float = 30.0
    ) -> tuple[bool, str | None]:
        """Claim and start a user's task; try for `timeout` seconds, then return (False, None)."""
        user_id, parsed = user_by_name(self._db, user), parse_task(task_id)
        deadline = time.monotonic() + timeout
        while True:
            lock_id = self._try(user_id, parsed)
            if lock_id is not None:
                return True, lock_id
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False, None
            time.sleep(min(RETRY_SECONDS, remaining))

    def renew_lock(self, lock_id: str) -> bool:
        """Keep a lock for another `lock_timeout`; False if it is no longer held: stop the work."""
        run = self._runs_by_lock.get(lock_id)
        if run is None:
            return False
        return heartbeat(self._db, run.claim, lease=self.lock_timeout) is not HeartbeatAnswer.LOST

    def release_lock(self, user: str, lock_id: str, result: Result | None = None) -> bool:
        """End the claim behind a lock that this object acquired; False if it is no longer held.

        With a result the task is settled with it. Without one the task returns to the queue and
        spends no attempt.
        """
        user_by_name(self._db, user)
        run = self._runs_by_lock.pop(lock_id, None)
        if run is None:
            return False
        return settle(self._db, run, result or Interrupted(RELEASED), agent=self._holder)

    def list_locks(self) -> list[UserLock]:
        """Return all locks that are held."""
        return list_locks(self._db)

    def check(self, user: str) -> list[UserLock]:
        """Return the locks that a user's tasks hold."""
        return list_locks(self._db, user_id=user_by_name(self._db, user))

    def cleanup_all_stale_locks(self) -> int:
        """End the claims whose locks were not renewed for `lock_timeout`; return their number."""
        with killing(self._settings) as kill:
            return cleanup_stale(
                self._db,
                max_age=self.lock_timeout,
                times=LeaseTimes.of(self._settings),
                actor=self._holder,
                kill=kill,
            )

    def _try(self, user_id: UserId, task_id: TaskId) -> str | None:
        claimed = claim_one(
            self._db,
            holder=self._holder,
            claim_settings=ClaimSettings.from_settings(self._settings),
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
        self._runs_by_lock[lock_id] = run
        return lock_id

    def _row(self, task_id: TaskId) -> Row[tuple[object, ...]]:
        row = self._db.atomically(
            lambda tx: tx.execute(statement("claim_of_task"), {"task_id": task_id}).one_or_none()
        )
        if row is None:
            raise TaskNotFound
        return row


class ConductorLockCleanup:
    """Releases locks by hand; the reaper does so by itself when a lease has expired."""

    def __init__(self, db: Db, settings: Settings, *, actor: str) -> None:
        self._db = db
        self._settings = settings
        self._actor = actor

    def check_and_cleanup_conductor_locks(self, project: str) -> int:
        """Release a project's locks that nobody renewed in time; return the number of claims."""
        return self._cleanup(
            self._settings.per_user_serialization_lock_timeout_seconds, project=project
        )

    def cleanup_stale_task_locks(self, max_age_seconds: float = 3600) -> int:
        """Release the locks that nobody renewed for `max_age_seconds`; return the number."""
        return self._cleanup(max_age_seconds)

    def release_task_lock(self, user: str, task_id: str) -> Sequence[str]:
        """Release a task's locks by force and end its run; return the released keys."""
        with killing(self._settings) as kill:
            return release_lock(
                self._db,
                user_by_name(self._db, user),
                parse_task(task_id),
                actor=self._actor,
                kill=kill,
            ).keys

    def _cleanup(self, max_age_seconds: float, *, project: str | None = None) -> int:
        with killing(self._settings) as kill:
            return cleanup_stale(
                self._db,
                max_age=timedelta(seconds=max_age_seconds),
                times=LeaseTimes.of(self._settings),
                actor=self._actor,
                kill=kill,
                project=project,
            )


def user_by_name(db: Db, name: str) -> UserId:
    """Return the id of the user with this name; raise UserNotFound if there is none."""
    user_id = find_user(db, name)
    if user_id is None:
        raise UserNotFound
    return user_id
