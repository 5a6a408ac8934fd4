"""Probes of a running stack: does the API answer, do its processes live, does beat tick."""

import http.client
from datetime import timedelta
from urllib.parse import urlsplit

from sqlalchemy import column, func, select, table

from overnight_server.store.db import Db
from overnight_server.store.models import Agent, SweepRun

PATIENCE = 2.0
# Who is connected to the server, as Postgres itself knows it.
_SESSIONS = table(
    "pg_stat_activity", column("datname"), column("application_name"), column("state_change")
)


def http_status(url: str) -> int | None:
    """Ask a web server for its answer's status; None if there is no answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def live_workers(db: Db, liveness: float) -> int:
    """Count the workers that take on work and were heard from within so many seconds."""
    return len(_heard(db, liveness, "active"))


def draining_workers(db: Db, liveness: float) -> list[str]:
    """Name the workers that were heard from but take on nothing new."""
    return _heard(db, liveness, "draining")


def _heard(db: Db, liveness: float, status: str) -> list[str]:
    heard = Agent.last_heartbeat_at > func.clock() - timedelta(seconds=liveness)
    question = select(Agent.id).where(Agent.status == status, heard).order_by(Agent.id)
    return db.atomically(lambda tx: list(tx.scalars(question)))


def seconds_since_each_dispatcher(db: Db, named: str) -> list[float | None]:
    """Tell of each connection of a dispatcher how long it has been silent, the latest first.

    None stands for one whose doings this login may not see.
    """
    silent = func.extract("epoch", func.now() - _SESSIONS.c.state_change)
    question = (
        select(silent)
        .where(
            _SESSIONS.c.application_name == named, _SESSIONS.c.datname == func.current_database()
        )
        .order_by(silent.nulls_last())
    )
    found = db.atomically(lambda tx: list(tx.scalars(question)))
    return [None if seconds is None else float(seconds) for seconds in found]


def seconds_since_last_sweep(db: Db) -> float | None:
    """Tell how long ago any maintenance sweep began; None if none ever did."""
    age = func.extract("epoch", func.clock() - func.max(SweepRun.started_at))
    seconds = db.atomically(lambda tx: tx.scalar(select(age)))
    return None if seconds is None else float(seconds)
