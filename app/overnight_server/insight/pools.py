"""The pools: which there are, whom each serves, and how much of each is busy."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from overnight_server.insight.health import DEFAULT_LIVENESS
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class PoolView:
    """One pool; `serves` is the only user it works for, None for everybody.

    Only workers that live are counted, and `slots` are those that can be given work. What all of
    the workers offer is what the pool offers.
    """

    name: str
    kind: str
    serves: str | None
    paused: bool
    workers: int
    slots: int
    busy: int
    draining: int
    capabilities: list[str]
    created_at: datetime


def list_pools(db: Db, *, liveness: timedelta = DEFAULT_LIVENESS) -> list[PoolView]:
    """Return the pools by name, also those that nobody serves just now."""
    asked = {"liveness": liveness.total_seconds()}
    rows = db.atomically(lambda tx: tx.execute(statement("view_pools"), asked).mappings().all())
    return [PoolView(**dict(row)) for row in rows]
