"""Triggers: graphs that are submitted when another graph of the user ends."""

from overnight.errors import TriggerNotFound
from overnight.models.account import Trigger
from overnight_server.domain.ids import DagId, TriggerId, UserId, show_dag, show_trigger
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_triggers(
    db: Db, user_id: UserId, *, dag_id: DagId | None = None, limit: int = 50
) -> list[Trigger]:
    """Return a user's triggers, newest first; with `dag_id`, only those of that graph."""
    return _read_triggers(db, user_id, dag_id, None, limit)


def get_trigger(db: Db, user_id: UserId, trigger_id: TriggerId) -> Trigger:
    """Return one trigger; raise TriggerNotFound if the user has no such trigger."""
    triggers = _read_triggers(db, user_id, None, trigger_id, 1)
    if not triggers:
        raise TriggerNotFound
    return triggers[0]


def _read_triggers(
    db: Db, user_id: UserId, dag_id: DagId | None, trigger_id: TriggerId | None, limit: int
) -> list[Trigger]:
    params = {"user_id": user_id, "dag_id": dag_id, "trigger_id": trigger_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("list_triggers"), params).mappings().all())
    return [
        Trigger(
            **{
                **row,
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
