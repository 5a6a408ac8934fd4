"""The attempts of a task: one per claim, with how it ended and what it cost."""

from overnight.errors import TaskNotFound
from overnight.models.account import Attempt
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_attempts(
    db: Db, user_id: UserId, task_id: TaskId, *, before: int | None = None, limit: int = 50
) -> list[Attempt]:
    """Return the claims of a task, the latest first; `before` is an epoch to continue from.

    Raises TaskNotFound if the user has no such task.
    """
    params = {"user_id": user_id, "task_id": task_id, "before_epoch": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_attempts"), params).mappings().all())
    if not rows:
        raise TaskNotFound
    # A task without claims is one row without an epoch.
    return [Attempt(**row) for row in rows if row["epoch"] is not None]
