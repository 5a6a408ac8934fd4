"""Tasks as entries of the single queue, with that design's field and state names."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping

from overnight.errors import TaskNotFound, UserNotFound
from overnight.models.queue import JobStatus, QueuedTask, QueueFigures
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State, Status
from overnight_server.domain.priority import MAX_POSITION, position_of
from overnight_server.mask import mask_names, mask_text
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# The name of each status in the original interface specification.
STATE_NAME: Mapping[Status, str] = {
    Status.PENDING: "pending",
    Status.CLAIMED: "dispatching",
    Status.RUNNING: "working",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


def get_entry(db: Db, user_id: UserId, task_id: TaskId) -> QueuedTask:
    """Return one entry; raise TaskNotFound if the user has no such task."""
    params = {"user_id": user_id, "task_id": task_id, "max_position": MAX_POSITION}
    row = db.atomically(
        lambda tx: tx.execute(statement("view_task"), params).mappings().one_or_none()
    )
    if row is None:
        raise TaskNotFound
    return _entry(row)


def list_entries(
    db: Db, user_id: UserId, *, limit: int, max_size: int
) -> tuple[QueueFigures, list[QueuedTask]]:
    """Return how full the queue is, and the user's entries that have not ended.

    Dispatched entries come first, then waiting ones in the order in which they will start.
    """

    def work(tx: Connection) -> tuple[QueueFigures, list[QueuedTask]]:
        lane = lanes.read(tx, user_id)
        if lane is None:
            raise UserNotFound
        params = {"user_id": user_id, "limit": limit, "max_position": MAX_POSITION}
        rows = tx.execute(statement("view_entries"), params).mappings().all()
        oldest = tx.execute(statement("oldest_entry"), {"user_id": user_id}).scalar_one()
        figures = QueueFigures(
            depth=lanes.depth(tx),
            max_size=max_size,
            oldest_age_seconds=int(oldest or 0),
            dispatched_count=lane.active,
        )
        return figures, [_entry(row) for row in rows]

    return db.atomically(work)


def list_jobs(db: Db, user_id: UserId, *, limit: int) -> list[JobStatus]:
    """Return the user's schedules and the jobs of external schedulers, the latest run first.

    Each comes with the outcome of its last run.
    """
    params = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_jobs"), params).all())
    return [
        JobStatus(
            name=row.name,
            last_run_at=row.last_run_at,
            last_status=row.last_status,
            last_queue_id=_queue_id(row.task_id, row.dag_id),
            is_running=row.is_running,
            next_run_at=row.next_run_at,
        )
        for row in rows
    ]


def _queue_id(task_id: UUID | None, dag_id: UUID | None) -> str | None:
    """Return the id of what a job submitted last: a task, or a whole graph."""
    if task_id is not None:
        return show_task(task_id)
    return None if dag_id is None else show_dag(dag_id)


def _entry(row: RowMapping) -> QueuedTask:
    state = State(row["state"])
    spec = mask_names(row["spec"])
    task_id = show_task(row["id"])
    is_dispatched = row["epoch"] > 0 and state.status is not Status.PENDING
    return QueuedTask(
        queue_id=task_id,
        state=STATE_NAME[state.status],
        position=position_of(row["ahead"], row["max_position"]),
        created_at=row["created_at"],
        prompt=_text(spec.get("prompt")) or row["title"],
        model=_text(spec.get("model")),
        timeout_seconds=row["timeout_seconds"],
        session_id=_text(spec.get("session_id")),
        project=_project(spec.get("project")) or row["project_id"],
        env=_env(spec.get("env")),
        thinking=spec["thinking"] if isinstance(spec.get("thinking"), bool) else None,
        dispatched_at=row["claimed_at"] or row["started_at"] if is_dispatched else None,
        task_id=task_id if is_dispatched else None,
        agent_url=row["agent_address"] or row["claimed_by"],
        attempts=row["epoch"],
        last_error=row["error"],
        source=row["source"],
        source_job=_text(spec.get("source_job")),
    )


# A producer may put anything into `spec`; a value of an unexpected type is left out.
def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _project(value: object) -> str | dict[str, Any] | None:
    return value if isinstance(value, str | dict) else None


def _env(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    # The value is masked too: an address may contain a password under any variable name.
    return {name: mask_text(text) for name, text in value.items() if isinstance(text, str)}
