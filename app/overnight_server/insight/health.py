"""Whether the deployment is alive: workers that beat, sweeps that run."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight_server.store.db import Db
from overnight_server.store.statements import statement

DEFAULT_LIVENESS = timedelta(seconds=15)


@dataclass(frozen=True)
class Health:
    """Live workers and their slots, and how many seconds ago each sweep last began."""

    workers: int
    slots: int
    sweeps: dict[str, float]


def health(db: Db, *, liveness: timedelta = DEFAULT_LIVENESS) -> Health:
    """Return the signs of life the database knows of."""

    def work(tx: Connection) -> Health:
        alive = tx.execute(statement("view_workers"), {"liveness": liveness.total_seconds()}).one()
        sweeps = tx.execute(statement("view_sweeps"))
        return Health(
            workers=alive.workers,
            slots=alive.slots,
            sweeps={row.name: row.seconds_ago for row in sweeps},
        )

    return db.atomically(work)
