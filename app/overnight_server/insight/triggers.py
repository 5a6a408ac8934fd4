"""What a user's graphs set off when they end."""

from dataclasses import dataclass
from datetime import datetime

from overnight.errors import TriggerNotFound
from overnight_server.domain.ids import DagId, TriggerId, UserId, show_dag, show_trigger
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class TriggerView:
    """One trigger: which graph's end it waits for, what it lets in, and whether it has fired."""

    id: str
    dag_id: str
    when: str
    title: str
    tasks: int
    created_by: str
    created_at: datetime
    due_at: datetime | None
    refusal: str | None
    refused_at: datetime | None
    fired_at: datetime | None
    fired_dag_id: str | None
    dropped_at: datetime | None


def list_triggers(
    db: Db, user_id: UserId, *, dag_id: DagId | None = None, limit: int = 50
) -> list[TriggerView]:
    """Return a user's triggers, those of one graph or all, the newest first."""
    return _read(db, user_id, dag_id, None, limit)


def get_trigger(db: Db, user_id: UserId, trigger_id: TriggerId) -> TriggerView:
    """Return one trigger; another user's looks exactly like none."""
    found = _read(db, user_id, None, trigger_id, 1)
    if not found:
        raise TriggerNotFound
    return found[0]


def _read(
    db: Db, user_id: UserId, dag_id: DagId | None, trigger_id: TriggerId | None, limit: int
) -> list[TriggerView]:
    named = {"user_id": user_id, "dag_id": dag_id, "trigger_id": trigger_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("list_triggers"), named).mappings().all())
    return [
        TriggerView(
            **{
                **{key: value for key, value in row.items() if key != "condition"},
                "id": show_trigger(row["id"]),
                "dag_id": show_dag(row["dag_id"]),
                "when": row["condition"],
                "fired_dag_id": None
                if row["fired_dag_id"] is None
                else show_dag(row["fired_dag_id"]),
            }
        )
        for row in rows
    ]
