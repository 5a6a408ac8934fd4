"""Tasks as their owner sees them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from overnight.errors import TaskNotFound
from overnight_server.domain.capabilities import agent_name_in
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.domain.priority import MAX_POSITION, priority_of
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class TaskView:
    """One task with the names the wire uses."""

    id: str
    queue_id: str
    dag_id: str
    parent_id: str | None
    title: str
    description: str
    type: str
    payload: Mapping[str, Any]
    status: str
    state: str
    priority: int
    priority_score: int
    project_id: str | None
    locks: list[str]
    queue_position: int | None
    position: int | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    result_summary: str | None
    output: Any
    files_changed: list[str] | None
    failure_reason: str | None
    error: str | None
    attempts: int
    max_attempts: int
    retry_at: datetime | None
    progress: Mapping[str, Any] | None
    tags: list[str]
    cost_usd: float
    max_cost_usd: float | None
    wait_reason: str | None
    agent_name: str | None
    timeout_seconds: int | None
    effective_timeout_seconds: int
    deadline_at: datetime | None
    estimated_cost_usd: float | None
    cancel_requested_at: datetime | None
    created_by: str
    source: str
    workflow_id: str
    task_type: str
    error_info: Mapping[str, Any] | None
    lease_owner: str | None
    lease_expires_at: datetime | None


def get_task(db: Db, user_id: UserId, task_id: TaskId) -> TaskView:
    """Return one of the user's tasks; another user's looks exactly like none."""
    row = db.atomically(
        lambda tx: (
            tx.execute(
                statement("view_task"),
                {"user_id": user_id, "task_id": task_id, "max_position": MAX_POSITION},
            )
            .mappings()
            .one_or_none()
        )
    )
    if row is None:
        raise TaskNotFound
    return _view(dict(row))


@dataclass(frozen=True)
class Chosen:
    """Which tasks are meant: those for which everything that is named holds.

    `titled` is found anywhere in a title, whatever its case; the range ends before `made_until`.
    """

    of_type: str | None = None
    of_tag: str | None = None
    of_project: str | None = None
    of_source: str | None = None
    made_from: datetime | None = None
    made_until: datetime | None = None
    titled: str | None = None


ALL = Chosen()


@dataclass(frozen=True)
class Selection:
    """What the list's whole filter chooses: by where tasks stand, and by all else."""

    states: frozenset[State] | None = None
    chosen: Chosen = ALL

    @property
    def parameters(self) -> dict[str, Any]:
        """What the statements that choose tasks want to know."""
        states = None if self.states is None else sorted(self.states)
        return {**vars(self.chosen), "states": states}


def list_tasks(
    db: Db,
    user_id: UserId,
    *,
    states: Collection[State] | None = None,
    chosen: Chosen = ALL,
    limit: int = 50,
    before: TaskId | None = None,
) -> list[TaskView]:
    """Return the user's newest tasks, those made before the task `before` if one is named."""
    rows = db.atomically(
        lambda tx: (
            tx.execute(
                statement("view_tasks"),
                {
                    **Selection(None if states is None else frozenset(states), chosen).parameters,
                    "user_id": user_id,
                    "before": before,
                    "limit": limit,
                    "max_position": MAX_POSITION,
                },
            )
            .mappings()
            .all()
        )
    )
    return [_view(dict(row)) for row in rows]


def owner_of(db: Db, task_id: TaskId) -> UserId:
    """Return whose task it is; for operators, who may look at anybody's."""
    named = {"task_id": task_id}
    row = db.atomically(lambda tx: tx.execute(statement("owner_of"), named).one_or_none())
    if row is None:
        raise TaskNotFound
    return UserId(row.user_id)


def recent_tasks(db: Db, *, limit: int) -> list[TaskId]:
    """Return the newest tasks of the whole deployment."""
    found = db.atomically(
        lambda tx: tx.execute(statement("recent_tasks"), {"limit": limit}).scalars().all()
    )
    return [TaskId(task) for task in found]


def _view(row: Mapping[str, Any]) -> TaskView:
    shown = show_task(row["id"])
    state = State(row["state"])
    position = position_of(row)
    return TaskView(
        id=shown,
        queue_id=shown,
        dag_id=show_dag(row["dag_id"]),
        parent_id=None if row["parent_id"] is None else show_task(row["parent_id"]),
        title=row["title"],
        description=row["description"],
        type=row["type"],
        payload=mask_names(row["payload"]),
        status=state.status.value,
        state=state.value,
        priority=priority_of(row["priority"]),
        priority_score=row["priority"],
        project_id=row["project_id"],
        locks=row["locks"] or [],
        queue_position=position,
        position=position,
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["finished_at"],
        result_summary=row["result_summary"],
        output=row["output"],
        files_changed=row["files_changed"],
        failure_reason=row["failure_reason"],
        error=row["error"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        retry_at=row["retry_at"],
        progress=mask_names(row["progress"]),
        tags=row["tags"],
        cost_usd=float(row["cost_usd"]),
        max_cost_usd=_usd(row["max_cost_usd"]),
        wait_reason=row["wait_reason"],
        agent_name=agent_name_in(row["required_capabilities"]),
        timeout_seconds=row["timeout_seconds"],
        effective_timeout_seconds=row["effective_timeout_seconds"],
        deadline_at=row["deadline_at"],
        estimated_cost_usd=_usd(row["estimated_cost_usd"]),
        cancel_requested_at=row["cancel_requested_at"],
        created_by=row["created_by"],
        source=row["source"],
        workflow_id=show_dag(row["dag_id"]),
        task_type=row["type"],
        error_info=_error_info(row),
        lease_owner=row["claimed_by"],
        lease_expires_at=row["expires_at"],
    )


def _usd(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _error_info(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if row["failure_reason"] is None and row["error"] is None:
        return None
    return {"reason": row["failure_reason"], "message": row["error"], "attempts": row["attempts"]}


def position_of(row: Mapping[str, Any]) -> int | None:
    """Return a waiting task's place, unless it is further back than anyone would read."""
    ahead: int | None = row["ahead"]
    return None if ahead is None or ahead >= row["max_position"] else ahead + 1
