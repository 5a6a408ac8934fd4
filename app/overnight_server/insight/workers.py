"""Workers and pools: which there are, how many slots they have, and how many are busy."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight.models.admin import Pool, Worker
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

DEFAULT_LIVENESS = timedelta(seconds=15)
MAX_LISTED = 1000


@dataclass(frozen=True)
class Health:
    """How many workers are alive, how many slots they have, and each sweep's age in seconds."""

    workers: int
    slots: int
    sweeps: dict[str, float]


def health(db: Db, *, liveness: timedelta = DEFAULT_LIVENESS) -> Health:
    """Return what the database knows about live workers and about the last run of each sweep."""

    def work(tx: Connection) -> Health:
        alive = tx.execute(statement("view_workers"), {"liveness": liveness.total_seconds()}).one()
        sweeps = tx.execute(statement("view_sweeps"))
        return Health(
            workers=alive.workers,
            slots=alive.slots,
            sweeps={row.name: row.seconds_ago for row in sweeps},
        )

    return db.atomically(work, all_users=True)


def list_workers(
    db: Db,
    *,
    liveness: timedelta = DEFAULT_LIVENESS,
    offline: bool = False,
    after: str | None = None,
    limit: int = MAX_LISTED,
) -> list[Worker]:
    """Return the first workers after one, ordered by pool; those that left only if `offline`."""
    params = {
        "liveness": liveness.total_seconds(),
        "offline": offline,
        "after": after,
        "limit": limit,
    }
    rows = db.atomically(lambda tx: tx.execute(statement("view_agents"), params).mappings().all())
    return [
        Worker(**{**row, "status": current_status(row["status"], is_alive=row["is_alive"])})
        for row in rows
    ]


def list_pools(
    db: Db,
    *,
    liveness: timedelta = DEFAULT_LIVENESS,
    after: str | None = None,
    limit: int = MAX_LISTED,
) -> list[Pool]:
    """Return the first pools after a name, ordered by name, also those without a live worker.

    Only live workers count. The slots of a draining worker are left out, and a pool offers the
    capabilities that all its workers have.
    """
    params = {"liveness": liveness.total_seconds(), "after": after, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_pools"), params).mappings().all())
    return [Pool(**row) for row in rows]


def current_status(status: str, *, is_alive: bool) -> str:
    """Return `silent` for a worker that stopped sending heartbeats, else its stored status.

    The slots of a silent worker no longer count, although no sweep has set it offline yet.
    """
    return status if is_alive or status == "offline" else "silent"
