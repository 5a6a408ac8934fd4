"""Doing something to many tasks at once: told beforehand, asked for, and taken back.

What is asked for is only written down here; maintenance works it off
(`overnight_server.maintenance.bulk`).
"""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight.errors import BulkAlreadyFinished, BulkNotFound, InvalidRequest
from overnight.models.bulk import TaskFilter
from overnight_server.domain.bulk import Action, applies_to
from overnight_server.domain.ids import BulkId, TaskId, UserId, new_bulk_id, show_bulk
from overnight_server.domain.lifecycle import ALIASES, State, Status, states_of
from overnight_server.insight.tasks import TaskCriteria, TaskSelection
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event

SAMPLE = 5


@dataclass(frozen=True)
class Order:
    """What to do to which tasks; `priority` is the score that reprioritise sets."""

    action: Action
    filter: TaskFilter
    priority: int | None = None
    everything: bool = False


@dataclass(frozen=True)
class Preview:
    """What an order would come to: the chosen, those it applies to, and the newest of these."""

    total: int
    applies: int
    sample: list[TaskId]


@dataclass(frozen=True)
class Started:
    """An operation that runs; `created` is False if an earlier request under the key began it."""

    bulk_id: BulkId
    created: bool


def selected_by(wanted: TaskFilter) -> TaskSelection:
    """Read a filter as the list reads its query; a word that is no status is refused."""
    states: frozenset[State] | None = None
    if wanted.status is not None:
        try:
            states = states_of(wanted.status.lower())
        except ValueError:
            legal = ", ".join(sorted({*Status, *State, *ALIASES}))
            message = "is no status of a task"
            raise InvalidRequest("filter.status", message, legal=legal) from None
    return TaskSelection(
        states,
        TaskCriteria(
            of_type=wanted.type,
            of_tag=wanted.tag,
            of_project=wanted.project_id,
            of_source=wanted.source,
            made_from=wanted.created_after,
            made_until=wanted.created_before,
            titled=wanted.title,
        ),
    )


def preview(db: Db, user_id: UserId, order: Order) -> Preview:
    """Tell what an order would come to now, and change nothing."""
    named = _checked(user_id, order)

    def work(tx: Connection) -> Preview:
        counted = tx.execute(statement("count_selected_tasks"), named).one()
        sample = (
            tx.execute(statement("sample_selected_tasks"), {**named, "limit": SAMPLE})
            .scalars()
            .all()
        )
        return Preview(counted.total, counted.applies, [TaskId(one) for one in sample])

    return db.atomically(work, one_instant=True)


def start(
    db: Db,
    user_id: UserId,
    order: Order,
    *,
    actor: str,
    key_id: str = "",
    idempotency_key: str | None = None,
) -> Started:
    """Write an order down, to be worked off from now on; what comes in later is not touched."""
    named = _checked(user_id, order)
    # Not under the lane: it takes as long as the user has tasks, and only promises a number.
    total = db.atomically(
        lambda tx: tx.execute(statement("count_selected_tasks"), named).one().total
    )
    bulk_id = new_bulk_id()

    def work(tx: Connection) -> Started:
        lanes.lock(tx, [user_id])
        if idempotency_key is not None:
            sent = {"user_id": user_id, "key": idempotency_key}
            known = tx.execute(statement("bulk_by_idempotency_key"), sent).one_or_none()
            if known is not None:
                return Started(BulkId(known.id), created=False)
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
            Event.BULK_STARTED,
            bulk_id=show_bulk(bulk_id),
            action=order.action.value,
            total=total,
            user_id=user_id,
        )
        return Started(bulk_id, created=True)

    return db.atomically(work)


def cancel_bulk(db: Db, user_id: UserId, bulk_id: BulkId, *, actor: str) -> None:
    """Let an operation go no further; what it has done stays done.

    Another user's looks exactly like none. One that has ended raises BulkAlreadyFinished.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        named = {"user_id": user_id, "bulk_id": bulk_id}
        if tx.execute(statement("cancel_bulk"), {**named, "actor": actor}).one_or_none() is None:
            one = {**named, "before": None, "limit": 1}
            row = tx.execute(statement("view_bulks"), one).one_or_none()
            if row is None:
                raise BulkNotFound
            raise BulkAlreadyFinished(row.state)

    db.atomically(work)


def _checked(user_id: UserId, order: Order) -> dict[str, Any]:
    """Refuse an order that cannot be meant so; return what the choosing statements want."""
    fields = order.filter.model_dump(exclude_none=True)
    if not fields and not order.everything:
        raise InvalidRequest(
            "filter",
            "it chooses every task there is",
            legal=f"one of {', '.join(TaskFilter.model_fields)}; or everything: true",
        )
    if fields and order.everything:
        legal = "a filter, or everything: true"
        raise InvalidRequest("everything", f"the filter names {', '.join(fields)}", legal=legal)
    needs_idle_listener = order.action is Action.REPRIORITISE
    if needs_idle_listener and order.priority is None:
        legal = "priority from 1 to 4, or priority_score from 0 to 100"
        raise InvalidRequest("priority", "reprioritise needs one", legal=legal)
    if not needs_idle_listener and order.priority is not None:
        message = f"{order.action} sets none"
        raise InvalidRequest("priority", message, legal="none, or the action reprioritise")
    return {
        **selected_by(order.filter).parameters,
        "user_id": user_id,
        "applies_to": applies_to(order.action),
        "priority": order.priority,
    }
