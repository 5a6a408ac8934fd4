"""Locks as an operator sees them: who holds what, who waits, and who has had to wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# How far behind a lock its line is looked at: further back nobody starts soon anyway.
LOOKED_AT = 1_000
HOLDER_PARTS = 3


@dataclass(frozen=True)
class LockView:
    """One held lock; it lives with its task's lease, so `expires_at` moves with each heartbeat.

    `waiting` counts the tasks at the front of the user's queue that need it, and `waiting_tasks`
    names the first of them.
    """

    user: str
    key: str
    lock_id: str
    task_id: str
    title: str
    project_id: str | None
    state: str
    holder: str
    acquired_at: datetime
    acquired_by_pid: int | None
    expires_at: datetime
    waiting: int
    waiting_tasks: list[str]


@dataclass(frozen=True)
class LockWaitView:
    """One time a lock came free while tasks waited for it; the first of them waited so long."""

    user: str
    key: str
    holder_task_id: str
    waiting_task_id: str
    waiting: int
    since: datetime
    until: datetime
    waited_seconds: float


def list_locks(
    db: Db, *, user_id: UserId | None = None, project: str | None = None, limit: int = 1_000
) -> list[LockView]:
    """Return the locks that are held, oldest first: everybody's, a user's or a project's."""
    asked = {"user_id": user_id, "project": project, "look": LOOKED_AT, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_locks"), asked).mappings().all())
    return [_lock(dict(row)) for row in rows]


def list_lock_waits(
    db: Db, *, user_id: UserId | None = None, limit: int = 50
) -> list[LockWaitView]:
    """Return the latest waits for locks, newest first."""
    asked = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_lock_waits"), asked).all())
    return [
        LockWaitView(
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
    """Return the name of a task's hold on its locks: the task and the second it took them."""
    return f"{show_task(task_id)}_{int(acquired_at.timestamp())}"


def _lock(row: Mapping[str, Any]) -> LockView:
    return LockView(
        user=row["user_name"],
        key=row["key"],
        lock_id=lock_id_of(row["task_id"], row["claimed_at"]),
        task_id=show_task(row["task_id"]),
        title=row["title"],
        project_id=row["project_id"],
        state=row["state"],
        holder=row["claimed_by"],
        acquired_at=row["claimed_at"],
        acquired_by_pid=_pid(row["claimed_by"]),
        expires_at=row["expires_at"],
        waiting=row["waiting"],
        waiting_tasks=[show_task(one) for one in row["first_waiting"] or ()],
    )


def _pid(holder: str) -> int | None:
    """Read the process id out of a holder of the deployment, `host:pid:boot`."""
    parts = holder.split(":")
    return int(parts[1]) if len(parts) == HOLDER_PARTS and parts[1].isdecimal() else None
