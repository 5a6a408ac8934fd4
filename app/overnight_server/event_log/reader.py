"""Reads the event log without gaps: only up to an id below which no event can still appear."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import DagNotFound, Refused, TaskNotFound
from overnight.models.enums import TaskStatus
from overnight.models.tasks import Event
from overnight_server.domain.ids import DagId, TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# A transaction that stays open for long lets at most this many marks pile up.
MAX_MARKS = 100


@dataclass(frozen=True)
class Topic:
    """Which events to read: all events of a user, or only those of one task or one graph."""

    user_id: UserId
    task_id: TaskId | None = None
    dag_id: DagId | None = None

    def covers(self, user_id: UUID, task_id: UUID, dag_id: UUID) -> bool:
        """Whether an event of this user, task and graph belongs to the topic."""
        return (
            self.user_id == user_id
            and self.task_id in (None, task_id)
            and self.dag_id in (None, dag_id)
        )

    @property
    def is_bounded(self) -> bool:
        """Whether the topic can end: a task or a graph has a last event, a user has none."""
        return self.task_id is not None or self.dag_id is not None


class Horizon:
    """The id up to which the log is complete: no event at or below it can still appear.

    Postgres gives out an event's id before the transaction that writes the event commits. So each
    mark holds the highest id given out and the transactions that were open then; when all of them
    have ended, the horizon advances to the mark.
    """

    def __init__(self) -> None:
        self.at: int | None = None
        self._marks: list[tuple[int, set[str]]] = []

    def advance(self, tx: Connection) -> int | None:
        """Advance as far as possible; return the horizon, None if it is not known yet."""
        # The highest id is read before the open transactions: a transaction that took an id before
        # the first read has then either ended, or is among the open transactions.
        highest_id = tx.execute(statement("last_event_id_given")).scalar_one()
        writers = set(tx.execute(statement("event_writers")).scalars())
        for _, open_writers in self._marks:
            open_writers.intersection_update(writers)
        if len(self._marks) < MAX_MARKS and (not self._marks or self._marks[-1][0] < highest_id):
            self._marks.append((highest_id, set(writers)))
        complete = [mark for mark, open_writers in self._marks if not open_writers]
        if complete:
            self.at = max(complete)
            self._marks = [mark for mark in self._marks if mark[0] > self.at]
        return self.at


def touched(
    tx: Connection, users: Collection[UserId], *, after: int, until: int
) -> list[tuple[UUID, UUID, UUID]]:
    """Return user, task and graph of every event of these users after one id, up to another."""
    rows = tx.execute(
        statement("tasks_with_new_events"), {"users": list(users), "after": after, "until": until}
    )
    return [(row.user_id, row.task_id, row.dag_id) for row in rows]


def read_events(db: Db, topic: Topic, *, after: int, until: int, limit: int = 500) -> list[Event]:
    """Return the events of a topic after one id and up to another, oldest first."""
    params: dict[str, object] = {
        "user_id": topic.user_id,
        "after": after,
        "until": until,
        "limit": limit,
    }
    if topic.task_id is not None:
        query = statement("events_of_task")
        params["task_id"] = topic.task_id
    elif topic.dag_id is not None:
        query = statement("events_of_dag")
        params["dag_id"] = topic.dag_id
    else:
        query = statement("events_of_user")
    rows = db.atomically(lambda tx: tx.execute(query, params).mappings().all())
    return [_event(dict(row)) for row in rows]


def last_event(db: Db, topic: Topic) -> int | None:
    """Return the id of the last event of a task or graph, None while it has not ended.

    Raises TaskNotFound or DagNotFound, also for a task or graph of another user.
    """
    params: dict[str, object] = {"user_id": topic.user_id}
    not_found: Refused
    if topic.task_id is not None:
        query, not_found = statement("last_event_of_task"), TaskNotFound()
        params["task_id"] = topic.task_id
    else:
        query, not_found = statement("last_event_of_dag"), DagNotFound()
        params["dag_id"] = topic.dag_id
    row = db.atomically(lambda tx: tx.execute(query, params).one_or_none())
    if row is None:
        raise not_found
    return None if row.last_id is None else int(row.last_id)


def _event(row: Mapping[str, Any]) -> Event:
    state = State(row["to_state"])
    return Event(
        id=row["id"],
        kind=row["kind"],
        task_id=None if row["task_id"] is None else show_task(row["task_id"]),
        dag_id=show_dag(row["dag_id"]),
        from_state=row["from_state"],
        state=state.value,
        status=TaskStatus(state.status.value),
        epoch=row["epoch"],
        reason=row["reason"],
        at=row["at"],
    )
