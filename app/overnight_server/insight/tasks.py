"""Tasks: read one, or list a user's tasks page by page."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight.errors import TaskNotFound
from overnight.models.enums import TaskStatus
from overnight.models.tasks import TaskResponse
from overnight_server.domain.capabilities import agent_name_in, runner_in
from overnight_server.domain.ids import DagId, TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import OPEN, State
from overnight_server.domain.priority import MAX_POSITION, position_of, priority_of
from overnight_server.domain.validation import validators_of
from overnight_server.mask import mask_names
from overnight_server.store.batched_statements import ResultRow, StatementCall
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def get_task(db: Db, user_id: UserId, task_id: TaskId) -> TaskResponse:
    """Return one of the user's tasks; raise TaskNotFound if the user has no such task."""
    rows = db.run_batch(view_task(user_id, task_id))
    if not rows:
        raise TaskNotFound
    return task_response(rows[0])


def get_tasks(db: Db, user_id: UserId, task_ids: Sequence[TaskId]) -> dict[str, TaskResponse]:
    """Return the user's tasks of these ids by the ids that users see."""
    if not task_ids:
        return {}
    rows = db.run_batch(
        StatementCall(
            "view_some_tasks",
            {"user_id": user_id, "tasks": list(task_ids), "max_position": MAX_POSITION},
        )
    )
    found = [task_response(row) for row in rows]
    return {task.id: task for task in found}


def view_task(user_id: UserId, task_id: TaskId) -> StatementCall:
    """Return the statement that selects one task for `task_response`."""
    params = {"user_id": user_id, "task_id": task_id, "max_position": MAX_POSITION}
    return StatementCall("view_task", params)


@dataclass(frozen=True)
class TaskCriteria:
    """A filter on tasks: a task matches if it matches every field that is not None.

    `titled` matches any part of the title and ignores case. `made_until` and `ended_until` are
    exclusive. A task that has not ended matches no `ended_from` and no `ended_until`. `of_error` is
    an error class or a part of the message, `of_wait` a code of `explain`, and `of_fingerprint` a
    group of dead letters.
    """

    of_type: str | None = None
    of_tag: str | None = None
    of_project: str | None = None
    of_source: str | None = None
    made_from: datetime | None = None
    made_until: datetime | None = None
    titled: str | None = None
    of_dag: DagId | None = None
    ended_from: datetime | None = None
    ended_until: datetime | None = None
    of_creator: str | None = None
    of_error: str | None = None
    of_lock: str | None = None
    cost_from: float | None = None
    cost_until: float | None = None
    attempts_from: int | None = None
    of_wait: str | None = None
    of_fingerprint: str | None = None


ALL = TaskCriteria()
DEAD = frozenset({State.DEAD_LETTERED})
#: So many tasks are read at once for a page of a search.
MOST_SEARCHED = 5_000


@dataclass(frozen=True)
class TaskSelection:
    """A whole filter on tasks: their states and the other criteria."""

    states: frozenset[State] | None = None
    criteria: TaskCriteria = ALL

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the statements that select tasks."""
        states = None if self.states is None else sorted(self.states)
        return {**vars(self.criteria), "states": states}


def list_tasks(
    db: Db,
    user_id: UserId,
    *,
    states: Collection[State] | None = None,
    criteria: TaskCriteria = ALL,
    limit: int = 50,
    before: TaskId | None = None,
    reach: TaskId | None = None,
) -> list[TaskResponse]:
    """Return the user's newest tasks; with `before`, those created before that task.

    With `reach`, tasks that were created before that one are not read.
    """
    selection = TaskSelection(None if states is None else frozenset(states), criteria)
    params = {
        **selection.parameters,
        "reach": reach,
        "only_open": selection.states is not None and selection.states <= OPEN,
        "only_dead": selection.states == DEAD,
        "user_id": user_id,
        "before": before,
        "limit": limit,
        "max_position": MAX_POSITION,
    }
    rows = db.run_batch(StatementCall("view_tasks", params))
    return [task_response(row) for row in rows]


def reach_of_search(
    db: Db, user_id: UserId, selection: TaskSelection, before: TaskId | None
) -> TaskId | None:
    """Return how far back a page of a search may read, so that its time does not grow with tasks.

    None means to the end: there are not many more tasks, or an index finds those of the states or
    of the graph. A search that matches few tasks goes on from there with the next page.
    """
    by_state = selection.states is None or selection.states <= OPEN or selection.states == DEAD
    by_index = selection.criteria.of_dag is not None or (selection.criteria == ALL and by_state)
    if by_index:
        return None
    params = {"user_id": user_id, "before": before, "look": MOST_SEARCHED}
    rows = db.run_batch(StatementCall("reach_of_search", params))
    return TaskId(rows[0].id) if rows else None


def owner_of(db: Db, task_id: TaskId) -> UserId:
    """Return the user who owns a task, for operators; raise TaskNotFound if there is none."""
    params = {"task_id": task_id}
    row = db.atomically(lambda tx: tx.execute(statement("owner_of_task"), params).one_or_none())
    if row is None:
        raise TaskNotFound
    return UserId(row.user_id)


def recent_tasks(db: Db, *, limit: int) -> list[TaskId]:
    """Return the ids of the newest tasks of all users."""
    task_ids = db.atomically(
        lambda tx: tx.execute(statement("recent_tasks"), {"limit": limit}).scalars().all()
    )
    return [TaskId(task_id) for task_id in task_ids]


def task_response(row: ResultRow) -> TaskResponse:
    """Return the task that a row of `view_task` or `view_tasks` describes."""
    task_id = show_task(row.id)
    state = State(row.state)
    position = position_of(row.ahead, row.max_position)
    return TaskResponse(
        id=task_id,
        queue_id=task_id,
        dag_id=show_dag(row.dag_id),
        parent_id=None if row.parent_id is None else show_task(row.parent_id),
        title=row.title,
        description=row.description,
        type=row.type,
        payload=mask_names(row.payload),
        status=TaskStatus(state.status),
        state=state.value,
        priority=priority_of(row.priority),
        priority_score=row.priority,
        project_id=row.project_id,
        locks=row.locks or [],
        queue_position=position,
        position=position,
        created_at=row.created_at,
        started_at=row.started_at,
        completed_at=row.finished_at,
        result_summary=row.result_summary,
        output=row.output,
        files_changed=row.files_changed,
        failure_reason=row.failure_reason,
        error=row.error,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        retry_at=row.retry_at,
        progress=mask_names(row.progress),
        tags=row.tags,
        cost_usd=row.cost_usd,
        max_cost_usd=row.max_cost_usd,
        wait_reason=row.wait_reason,
        agent_name=agent_name_in(row.required_capabilities),
        runner=runner_in(row.required_capabilities),
        agent=None if row.execution is None else row.execution.get("agent"),
        execution=_execution(row.execution),
        output_validation=validators_of(row.spec),
        timeout_seconds=row.timeout_seconds,
        effective_timeout_seconds=row.effective_timeout_seconds,
        deadline_at=row.deadline_at,
        start_at=row.start_at,
        estimated_cost_usd=row.estimated_cost_usd,
        cancel_requested_at=row.cancel_requested_at,
        created_by=row.created_by,
        source=row.source,
        workflow_id=show_dag(row.dag_id),
        task_type=row.type,
        error_info=_error_info(row),
        lease_owner=row.claimed_by,
        lease_expires_at=row.expires_at,
    )


def _execution(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return how a command runs, without what only an edit needs; secrets are references."""
    if stored is None:
        return None
    return {name: value for name, value in stored.items() if name != "asked"}


def _error_info(row: ResultRow) -> dict[str, Any] | None:
    if row.failure_reason is None and row.error is None:
        return None
    return {"reason": row.failure_reason, "message": row.error, "attempts": row.attempts}
