"""Sources of webhooks and their deliveries, as their owner sees them; never their secrets."""

from typing import Any

from sqlalchemy import RowMapping

from overnight.errors import DeliveryNotFound, HookNotFound
from overnight.models.hooks import Hook, HookDelivery
from overnight_server.domain.ids import HookId, UserId, show_dag, show_hook, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: Where senders post their events; the id of the source follows.
HOOK_PATH = "/hooks/"


def list_hooks(db: Db, user_id: UserId) -> list[Hook]:
    """Return a user's sources of webhooks by name."""
    return _read_hooks(db, user_id, None)


def get_hook(db: Db, user_id: UserId, hook_id: HookId) -> Hook:
    """Return one source of webhooks; raise HookNotFound if the user has no such one."""
    hooks = _read_hooks(db, user_id, hook_id)
    if not hooks:
        raise HookNotFound
    return hooks[0]


def list_deliveries(
    db: Db,
    user_id: UserId,
    hook_id: HookId,
    *,
    outcome: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[HookDelivery]:
    """Return the deliveries of a source, latest first; raise HookNotFound if there is no such."""
    get_hook(db, user_id, hook_id)
    return _read_deliveries(
        db,
        user_id,
        hook_id,
        delivery_id=None,
        outcome=outcome,
        before_number=before,
        limit=limit,
    )


def get_delivery(db: Db, user_id: UserId, delivery_id: int) -> HookDelivery:
    """Return one delivery with its body; raise DeliveryNotFound if the user has no such one."""
    deliveries = _read_deliveries(
        db, user_id, None, delivery_id=delivery_id, outcome=None, before_number=None, limit=1
    )
    if not deliveries:
        raise DeliveryNotFound
    return deliveries[0]


def _read_hooks(db: Db, user_id: UserId, hook_id: HookId | None) -> list[Hook]:
    params = {"user_id": user_id, "source_id": hook_id}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_webhook_sources"), params).mappings().all()
    )
    return [_hook(row) for row in rows]


def _hook(row: RowMapping) -> Hook:
    shown = show_hook(row["id"])
    template = "graph" if row["is_graph"] else "task"
    return Hook(**{**row, "id": shown, "path": f"{HOOK_PATH}{shown}", template: row["template"]})


def _read_deliveries(
    db: Db,
    user_id: UserId,
    hook_id: HookId | None,
    **params: Any,  # noqa: ANN401 - parameters of SQL
) -> list[HookDelivery]:
    named = {"user_id": user_id, "source_id": hook_id, **params}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_deliveries"), named).mappings().all()
    )
    return [
        HookDelivery(
            **{
                **row,
                "hook_id": show_hook(row["source_id"]),
                "dag_id": None if row["dag_id"] is None else show_dag(row["dag_id"]),
                "task_ids": [show_task(task_id) for task_id in row["task_ids"]],
            }
        )
        for row in rows
    ]
