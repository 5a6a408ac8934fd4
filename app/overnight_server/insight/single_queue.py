"""Tasks as entries of a single queue: the words of that design for what every task has."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from overnight.errors import TaskNotFound, UserNotFound
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import State, Status
from overnight_server.domain.priority import MAX_POSITION
from overnight_server.insight.tasks import position_of
from overnight_server.mask import mask_names, mask_text
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# The design's word for each status.
WORD_OF: Mapping[Status, str] = {
    Status.PENDING: "pending",
    Status.CLAIMED: "dispatching",
    Status.RUNNING: "working",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


@dataclass(frozen=True)
class QueuedTaskView:
    """One entry; `task_id` and `agent_url` only once somebody was given it."""

    queue_id: str
    state: str
    position: int | None
    created_at: datetime
    prompt: str
    model: str | None
    timeout_seconds: int | None
    session_id: str | None
    project: str | dict[str, Any] | None
    env: dict[str, str] | None
    thinking: bool | None
    dispatched_at: datetime | None
    task_id: str | None
    agent_url: str | None
    attempts: int
    last_error: str | None
    source: str
    source_job: str | None


@dataclass(frozen=True)
class FiguresView:
    """How full the queue is, and which of the user's tasks wait longest or are dispatched."""

    depth: int
    oldest_age_seconds: int
    dispatched_count: int


@dataclass(frozen=True)
class JobView:
    """A scheduler's job; `is_running` while what it submitted last has not ended."""

    name: str
    last_run_at: datetime
    last_status: str
    last_queue_id: str | None
    is_running: bool


def get_entry(db: Db, user_id: UserId, task_id: TaskId) -> QueuedTaskView:
    """Return one entry; another user's looks exactly like none."""
    named = {"user_id": user_id, "task_id": task_id, "max_position": MAX_POSITION}
    row = db.atomically(
        lambda tx: tx.execute(statement("view_task"), named).mappings().one_or_none()
    )
    if row is None:
        raise TaskNotFound
    return _entry(dict(row))


def list_entries(
    db: Db, user_id: UserId, *, limit: int
) -> tuple[FiguresView, list[QueuedTaskView]]:
    """Return how full the queue is, and the user's entries that have not ended.

    Those that somebody has come first, then those that wait, the next to start first.
    """

    def work(tx: Connection) -> tuple[FiguresView, list[QueuedTaskView]]:
        lane = lanes.read(tx, user_id)
        if lane is None:
            raise UserNotFound
        named = {"user_id": user_id, "limit": limit, "max_position": MAX_POSITION}
        rows = tx.execute(statement("view_entries"), named).mappings().all()
        oldest = tx.execute(statement("oldest_entry"), {"user_id": user_id}).scalar_one()
        figures = FiguresView(lanes.depth(tx), int(oldest or 0), lane.active)
        return figures, [_entry(dict(row)) for row in rows]

    return db.atomically(work)


def list_jobs(db: Db, user_id: UserId, *, limit: int) -> list[JobView]:
    """Return what became of the latest submits of the user's scheduler, the latest first."""
    named = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_jobs"), named).all())
    return [
        JobView(
            name=row.name,
            last_run_at=row.last_run_at,
            last_status=row.last_status,
            last_queue_id=None if row.task_id is None else show_task(row.task_id),
            is_running=row.state is not None and not State(row.state).is_final,
        )
        for row in rows
    ]


def _entry(row: Mapping[str, Any]) -> QueuedTaskView:
    state = State(row["state"])
    spec = mask_names(row["spec"])
    shown = show_task(row["id"])
    is_dispatched = row["epoch"] > 0 and state.status is not Status.PENDING
    return QueuedTaskView(
        queue_id=shown,
        state=WORD_OF[state.status],
        position=position_of(row),
        created_at=row["created_at"],
        prompt=_text(spec.get("prompt")) or row["title"],
        model=_text(spec.get("model")),
        timeout_seconds=row["timeout_seconds"],
        session_id=_text(spec.get("session_id")),
        project=_project(spec.get("project")) or row["project_id"],
        env=_env(spec.get("env")),
        thinking=spec["thinking"] if isinstance(spec.get("thinking"), bool) else None,
        dispatched_at=row["claimed_at"] or row["started_at"] if is_dispatched else None,
        task_id=shown if is_dispatched else None,
        agent_url=row["claimed_by"],
        attempts=row["epoch"],
        last_error=row["error"],
        source=row["source"],
        source_job=_text(spec.get("source_job")),
    )


# A spec is its producer's own: what is not what the design has there is left out.
def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _project(value: object) -> str | dict[str, Any] | None:
    return value if isinstance(value, str | dict) else None


def _env(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    # A variable's name may say nothing of the password in its address.
    return {name: mask_text(each) for name, each in value.items() if isinstance(each, str)}
