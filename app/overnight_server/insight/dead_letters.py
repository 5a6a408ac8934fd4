"""Dead letters: tasks that failed for good, with what a person needs to decide about them."""

from overnight.errors import TaskNotFound
from overnight.models.account import DeadLetterGroup
from overnight.models.admin import UserDeadLetter
from overnight_server.domain.capabilities import agent_name_in
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# Groups are built from this many of the newest dead letters, so that the query stays fast.
MAX_GROUPED = 10_000


def list_dead_letters(
    db: Db,
    *,
    user_id: UserId | None = None,
    resolved: bool = False,
    fingerprint: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[UserDeadLetter]:
    """Return the newest dead letters of one user or of all; resolved ones only if `resolved`."""
    return _read_dead_letters(
        db,
        user_id=user_id,
        task_id=None,
        resolved=resolved,
        limit=limit,
        fingerprint=fingerprint,
        before_id=before,
    )


def group_dead_letters(
    db: Db, *, user_id: UserId | None = None, limit: int = 50
) -> list[DeadLetterGroup]:
    """Return the open dead letters grouped by fingerprint, the largest group first."""
    params = {"user_id": user_id, "look": MAX_GROUPED, "limit": limit}
    rows = db.atomically(
        lambda tx: tx.execute(statement("group_dead_letters"), params).mappings().all()
    )
    return [
        DeadLetterGroup(**{**row, "task_ids": [show_task(task_id) for task_id in row["task_ids"]]})
        for row in rows
    ]


def get_dead_letter(db: Db, task_id: TaskId, *, user_id: UserId | None = None) -> UserDeadLetter:
    """Return a task's newest dead letter, resolved or not; raise TaskNotFound if it has none."""
    letters = _read_dead_letters(db, user_id=user_id, task_id=task_id, resolved=True, limit=1)
    if not letters:
        raise TaskNotFound
    return letters[0]


def _read_dead_letters(
    db: Db,
    *,
    user_id: UserId | None,
    task_id: TaskId | None,
    resolved: bool,
    limit: int,
    fingerprint: str | None = None,
    before_id: int | None = None,
) -> list[UserDeadLetter]:
    params = {
        "user_id": user_id,
        "task_id": task_id,
        "resolved": resolved,
        "limit": limit,
        "fingerprint": fingerprint,
        "before_id": before_id,
    }
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_dead_letters"), params).mappings().all()
    )
    return [
        UserDeadLetter(
            **{
                **row,
                "task_id": show_task(row["task_id"]),
                "dag_id": show_dag(row["dag_id"]),
                "user": row["user_name"],
                "task_type": row["type"],
                "agent_name": agent_name_in(row["required_capabilities"]),
                "payload": mask_names(row["payload"]),
            }
        )
        for row in rows
    ]
