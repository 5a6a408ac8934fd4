"""Reading the event log so that nothing is passed over: never beyond what is certain."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import DagNotFound, Refused, TaskNotFound
from overnight_server.domain.ids import DagId, TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# While somebody holds the log open for long, what was given out meanwhile is noted this often.
MOST_NOTES = 100


@dataclass(frozen=True)
class EventView:
    """One event with the names the wire uses."""

    id: int
    kind: str
    task_id: str
    dag_id: str
    from_state: str | None
    state: str
    status: str
    epoch: int
    reason: str | None
    at: datetime


@dataclass(frozen=True)
class Topic:
    """Whose events are meant: all of a user's, or only those of a task or of a graph."""

    user_id: UserId
    task_id: TaskId | None = None
    dag_id: DagId | None = None

    def covers(self, user_id: UUID, task_id: UUID, dag_id: UUID) -> bool:
        """Whether an event of this task is among them."""
        return (
            self.user_id == user_id
            and self.task_id in (None, task_id)
            and self.dag_id in (None, dag_id)
        )

    @property
    def is_bounded(self) -> bool:
        """Whether the last of these events can have come."""
        return self.task_id is not None or self.dag_id is not None


class Horizon:
    """How far the log is certain: nobody can still come to light at or below it.

    An id is given out before its writer commits. Whoever might hold one when a reach is noted is
    noted with it, and the horizon moves there once they all have ended.
    """

    def __init__(self) -> None:
        self.at: int | None = None
        self._notes: list[tuple[int, set[str]]] = []

    def look(self, tx: Connection) -> int | None:
        """Look once more, and return how far the log is certain; None if that is not known yet."""
        # In this order: whoever got an id before the reach was read is still seen afterwards.
        reach = tx.execute(statement("event_reach")).scalar_one()
        writers = set(tx.execute(statement("event_writers")).scalars())
        for _, holding in self._notes:
            holding.intersection_update(writers)
        if len(self._notes) < MOST_NOTES and (not self._notes or self._notes[-1][0] < reach):
            self._notes.append((reach, set(writers)))
        certain = [noted for noted, holding in self._notes if not holding]
        if certain:
            self.at = max(certain)
            self._notes = [note for note in self._notes if note[0] > self.at]
        return self.at


def touched(
    tx: Connection, users: Collection[UserId], *, after: int, until: int
) -> list[tuple[UUID, UUID, UUID]]:
    """Return the user, task and graph of every task that something happened to in between."""
    rows = tx.execute(
        statement("events_touched"), {"users": list(users), "after": after, "until": until}
    )
    return [(row.user_id, row.task_id, row.dag_id) for row in rows]


def read_events(
    db: Db, topic: Topic, *, after: int, until: int, limit: int = 500
) -> list[EventView]:
    """Return the events of a topic after one id and up to another, oldest first."""
    values: dict[str, object] = {
        "user_id": topic.user_id,
        "after": after,
        "until": until,
        "limit": limit,
    }
    if topic.task_id is not None:
        chosen = statement("events_of_task")
        values["task_id"] = topic.task_id
    elif topic.dag_id is not None:
        chosen = statement("events_of_dag")
        values["dag_id"] = topic.dag_id
    else:
        chosen = statement("events_of_user")
    rows = db.atomically(lambda tx: tx.execute(chosen, values).mappings().all())
    return [_view(dict(row)) for row in rows]


def last_event(db: Db, topic: Topic) -> int | None:
    """Return the last event of a task or graph that has ended, or None while it may move.

    Another user's looks exactly like none.
    """
    values: dict[str, object] = {"user_id": topic.user_id}
    missing: Refused
    if topic.task_id is not None:
        chosen, missing = statement("last_event_of_task"), TaskNotFound()
        values["task_id"] = topic.task_id
    else:
        chosen, missing = statement("last_event_of_dag"), DagNotFound()
        values["dag_id"] = topic.dag_id
    row = db.atomically(lambda tx: tx.execute(chosen, values).one_or_none())
    if row is None:
        raise missing
    return None if row.last_id is None else int(row.last_id)


def _view(row: Mapping[str, Any]) -> EventView:
    state = State(row["to_state"])
    return EventView(
        id=row["id"],
        kind=row["kind"],
        task_id=show_task(row["task_id"]),
        dag_id=show_dag(row["dag_id"]),
        from_state=row["from_state"],
        state=state.value,
        status=state.status.value,
        epoch=row["epoch"],
        reason=row["reason"],
        at=row["at"],
    )
