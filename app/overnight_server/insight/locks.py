"""Locks: which task holds which lock, which tasks wait for it, and how long tasks had to wait."""

from datetime import datetime

from overnight.models.admin import UserLock, UserLockWait
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# Only this many tasks at the front of a queue are searched for those that need the lock: tasks
# further back do not start soon anyway.
SEARCHED_TASKS = 1_000
HOLDER_PARTS = 3


def list_locks(
    db: Db, *, user_id: UserId | None = None, project: str | None = None, limit: int = 1_000
) -> list[UserLock]:
    """Return the locks that are held, oldest first: of all users, of a user or of a project.

    A lock lives as long as the lease of its task, so `expires_at` moves with each heartbeat.
    """
    params = {"user_id": user_id, "project": project, "look": SEARCHED_TASKS, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_locks"), params).all())
    return [
        UserLock(
            user=row.user_name,
            key=row.key,
            lock_id=lock_id_of(row.task_id, row.claimed_at),
            task_id=show_task(row.task_id),
            title=row.title,
            project_id=row.project_id,
            state=row.state,
            holder=row.claimed_by,
            acquired_at=row.claimed_at,
            acquired_by_pid=_pid(row.claimed_by),
            expires_at=row.expires_at,
            waiting=row.waiting,
            waiting_tasks=[show_task(task_id) for task_id in row.first_waiting or ()],
        )
        for row in rows
    ]


def list_lock_waits(
    db: Db, *, user_id: UserId | None = None, limit: int = 50
) -> list[UserLockWait]:
    """Return the latest waits for locks, newest first."""
    params = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_lock_waits"), params).all())
    return [
        UserLockWait(
            user=row.user_name,
            key=row.key,
            holder_task_id=show_task(row.holder_id),
            waiting_task_id=show_task(row.waiter_id),
            waiting=row.waiting,
            since=row.since,
            until=row.until,
            waited_seconds=round((row.until - row.since).total_seconds(), 3),
        )
        for row in rows
    ]


def lock_id_of(task_id: TaskId, acquired_at: datetime) -> str:
    """Return the id of the locks that a task holds: the task's id and the second of its claim."""
    return f"{show_task(task_id)}_{int(acquired_at.timestamp())}"


def _pid(holder: str) -> int | None:
    """Return the process id in `host:pid:boot`, the form in which workers name themselves."""
    parts = holder.split(":")
    return int(parts[1]) if len(parts) == HOLDER_PARTS and parts[1].isdecimal() else None
