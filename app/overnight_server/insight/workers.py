"""The workers: which pool each serves, how many slots it has, how many are busy, if it lives."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from overnight_server.insight.health import DEFAULT_LIVENESS
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

SILENT = "silent"


@dataclass(frozen=True)
class WorkerView:
    """One worker; `status` is active, draining, silent or offline.

    Agents outside the deployment have an owner and a name.
    """

    id: str
    kind: str
    pool: str
    owner: str | None
    name: str | None
    slots: int
    busy: int
    status: str
    capabilities: list[str]
    types: list[str]
    joined_at: datetime
    last_seen_at: datetime


def list_workers(
    db: Db, *, liveness: timedelta = DEFAULT_LIVENESS, offline: bool = False
) -> list[WorkerView]:
    """Return the workers by pool; those that left only if `offline`."""
    asked = {"liveness": liveness.total_seconds(), "offline": offline}
    rows = db.atomically(lambda tx: tx.execute(statement("view_agents"), asked).mappings().all())
    return [_view(dict(row)) for row in rows]


def _view(row: dict[str, Any]) -> WorkerView:
    is_alive = row.pop("is_alive")
    if row["status"] != "offline" and not is_alive:
        # Its slots no longer count, though nobody has written it off yet.
        row["status"] = SILENT
    return WorkerView(**row)
