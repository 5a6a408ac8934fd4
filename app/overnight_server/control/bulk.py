"""Bulk operations on all tasks that a filter selects: preview, start and cancel.

Starting one only inserts its row; the sweep `overnight_server.maintenance.bulk` changes the tasks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight.errors import BulkAlreadyFinished, BulkNotFound, InvalidRequest
from overnight.models.bulk import TaskFilter
from overnight_server.domain.bulk import Action, applies_to
from overnight_server.domain.ids import (
    BulkId,
    DagId,
    MalformedId,
    TaskId,
    UserId,
    new_bulk_id,
    parse_dag,
    show_bulk,
)
from overnight_server.domain.lifecycle import ALIASES, FINAL, State, Status, states_named
from overnight_server.insight.tasks import TaskCriteria, TaskSelection
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

SAMPLE_SIZE = 5


@dataclass(frozen=True)
class BulkOrder:
    """What to do with which tasks; `priority` is the score that reprioritise sets."""

    action: Action
    filter: TaskFilter
    priority: int | None = None
    everything: bool = False


@dataclass(frozen=True)
class BulkOrderPreview:
    """How many tasks a filter selects, to how many the action applies, and the newest of these."""

    total: int
    applies: int
    sample: list[TaskId]


@dataclass(frozen=True)
class StartedBulk:
    """A bulk operation; `created` False means an earlier request under the key started it."""

    bulk_id: BulkId
    created: bool


def selection_of(task_filter: TaskFilter) -> TaskSelection:
    """Return the selection that a filter describes.

    Raises InvalidRequest for an unknown status and for a graph id that is none.
    """
    states: frozenset[State] | None = None
    if task_filter.status is not None:
        try:
            states = states_named(task_filter.status)
        except ValueError:
            legal = ", ".join(sorted({*Status, *State, *ALIASES}))
            message = "is not a status of a task"
            raise InvalidRequest("filter.status", message, legal=legal) from None
    return TaskSelection(
        states,
        TaskCriteria(
            of_type=task_filter.type,
            of_tag=task_filter.tag,
            of_project=task_filter.project_id,
            of_source=task_filter.source,
            made_from=task_filter.created_after,
            made_until=task_filter.created_before,
            titled=task_filter.title,
            of_dag=_dag_of(task_filter),
            ended_from=task_filter.ended_after,
            ended_until=task_filter.ended_before,
            of_creator=task_filter.created_by,
            of_error=task_filter.error,
            of_lock=task_filter.lock,
            cost_from=task_filter.min_cost_usd,
            cost_until=task_filter.below_cost_usd,
            attempts_from=task_filter.min_attempts,
            of_wait=task_filter.waits_for,
            of_fingerprint=task_filter.fingerprint,
        ),
    )


def _dag_of(task_filter: TaskFilter) -> DagId | None:
    if task_filter.dag_id is None:
        return None
    try:
        return parse_dag(task_filter.dag_id)
    except MalformedId as error:
        raise InvalidRequest("filter.dag_id", str(error), legal="the id of a graph") from None


def preview(
    db: Db, user_id: UserId, order: BulkOrder, *, most: int | None = None
) -> BulkOrderPreview:
    """Return what an order would do now; change nothing.

    With `most`, each number is counted as far as that, which takes less time for very many tasks.
    """
    params = _selection_params(user_id, order)
    if most is None:
        count, limits = "count_selected_tasks", {}
    else:
        count, limits = "count_some_selected_tasks", {"most": most, **_changeable(params)}

    def work(tx: Connection) -> BulkOrderPreview:
        counted = tx.execute(statement(count), {**params, **limits}).one()
        if not counted.applies:
            # The search for the newest of them would look at every task.
            return BulkOrderPreview(counted.total, 0, [])
        sample = (
            tx.execute(statement("sample_selected_tasks"), {**params, "limit": SAMPLE_SIZE})
            .scalars()
            .all()
        )
        return BulkOrderPreview(
            counted.total, counted.applies, [TaskId(task_id) for task_id in sample]
        )

    return db.atomically(work, one_instant=True)


def start(
    db: Db,
    user_id: UserId,
    order: BulkOrder,
    *,
    actor: str,
    key_id: str = "",
    idempotency_key: str | None = None,
) -> StartedBulk:
    """Start a bulk operation; tasks that are submitted later are not changed.

    The same idempotency key again returns the first operation.
    """
    params = _selection_params(user_id, order)
    # Counted without the lane's lock, because the count may take long; the number is only shown.
    total = db.atomically(
        lambda tx: tx.execute(statement("count_selected_tasks"), params).one().total
    )
    bulk_id = new_bulk_id()

    def work(tx: Connection) -> StartedBulk:
        lanes.lock(tx, [user_id])
        if idempotency_key is not None:
            key = {"user_id": user_id, "key": idempotency_key}
            existing = tx.execute(statement("bulk_by_idempotency_key"), key).one_or_none()
            if existing is not None:
                return StartedBulk(BulkId(existing.id), created=False)
        tx.execute(statement("set_actor"), {"actor": actor})
        tx.execute(
            statement("start_bulk"),
            {
                "bulk_id": bulk_id,
                "user_id": user_id,
                "action": order.action.value,
                "filter": json.dumps(order.filter.model_dump(mode="json", exclude_none=True)),
                "priority": order.priority,
                "actor": actor,
                "key_id": key_id,
                "key": idempotency_key,
                "total": total,
            },
        )
        log_after_commit(
            tx,
            LogEvent.BULK_STARTED,
            bulk_id=show_bulk(bulk_id),
            action=order.action.value,
            total=total,
            user_id=user_id,
        )
        return StartedBulk(bulk_id, created=True)

    return db.atomically(work)


def cancel_bulk(db: Db, user_id: UserId, bulk_id: BulkId, *, actor: str) -> None:
    """Stop a bulk operation; tasks that it has changed stay changed.

    Raises BulkNotFound if the user has no such operation, and BulkAlreadyFinished if it has ended.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"user_id": user_id, "bulk_id": bulk_id}
        if tx.execute(statement("cancel_bulk"), {**params, "actor": actor}).one_or_none() is None:
            view = {**params, "before": None, "limit": 1}
            row = tx.execute(statement("view_bulks"), view).one_or_none()
            if row is None:
                raise BulkNotFound
            raise BulkAlreadyFinished(row.state)

    db.atomically(work)


def _changeable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return in which of the selected states an action applies, and whether all are open ones."""
    states = set(params["applies_to"])
    if params["states"] is not None:
        states &= set(params["states"])
    return {"changeable": sorted(states), "only_open": states.isdisjoint(FINAL)}


def _selection_params(user_id: UserId, order: BulkOrder) -> dict[str, Any]:
    """Return the parameters of the selecting statements; raise for a contradictory order."""
    fields = order.filter.model_dump(exclude_none=True)
    if not fields and not order.everything:
        raise InvalidRequest(
            "filter",
            "it selects all of your tasks",
            legal=f"one of {', '.join(TaskFilter.model_fields)}; or everything: true",
        )
    if fields and order.everything:
        legal = "a filter, or everything: true"
        raise InvalidRequest("everything", f"the filter names {', '.join(fields)}", legal=legal)
    sets_priority = order.action is Action.REPRIORITISE
    if sets_priority and order.priority is None:
        legal = "priority from 1 to 4, or priority_score from 0 to 100"
        raise InvalidRequest("priority", "is required by reprioritise", legal=legal)
    if not sets_priority and order.priority is not None:
        message = f"is not used by {order.action}"
        raise InvalidRequest("priority", message, legal="no priority, or the action reprioritise")
    return {
        **selection_of(order.filter).parameters,
        "user_id": user_id,
        "applies_to": applies_to(order.action),
        "priority": order.priority,
    }
