"""Probes of a running service: HTTP status, live workers, connected processes, the last sweep."""

import http.client
from datetime import timedelta
from urllib.parse import urlsplit

from sqlalchemy import column, func, select, table

from overnight_server.store.db import Db
from overnight_server.store.models import AgentRow, SweepRunRow

HTTP_TIMEOUT = 2.0
# The sessions of the server, as Postgres lists them.
_SESSIONS = table(
    "pg_stat_activity", column("datname"), column("application_name"), column("state_change")
)
_HTTP_AGENTS = table("http_agents", column("removed_at"))
_CHANNELS = table("notification_channels", column("removed_at"))


def http_status(url: str) -> int | None:
    """Return the status of a GET request; None if the server does not respond."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=HTTP_TIMEOUT)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def live_workers(db: Db, liveness: float) -> int:
    """Count the active workers whose last heartbeat is at most `liveness` seconds old."""
    return len(_workers_with_status(db, liveness, "active"))


def draining_workers(db: Db, liveness: float) -> list[str]:
    """Return the ids of live workers that accept no new tasks."""
    return _workers_with_status(db, liveness, "draining")


def deaf_workers(db: Db, liveness: float) -> list[str]:
    """Return the ids of live workers that read no messages."""
    is_live = AgentRow.last_heartbeat_at > func.clock() - timedelta(seconds=liveness)
    query = (
        select(AgentRow.id)
        .where(AgentRow.deaf_since.is_not(None), AgentRow.status != "offline", is_live)
        .order_by(AgentRow.id)
    )
    return db.atomically(lambda tx: list(tx.scalars(query)))


def dropped_messages(db: Db) -> int:
    """Return how many messages the workers that have not left dropped since they started."""
    query = select(func.coalesce(func.sum(AgentRow.dropped_messages), 0)).where(
        AgentRow.status != "offline"
    )
    return int(db.atomically(lambda tx: tx.scalar(query)) or 0)


def _workers_with_status(db: Db, liveness: float, status: str) -> list[str]:
    is_live = AgentRow.last_heartbeat_at > func.clock() - timedelta(seconds=liveness)
    query = select(AgentRow.id).where(AgentRow.status == status, is_live).order_by(AgentRow.id)
    return db.atomically(lambda tx: list(tx.scalars(query)))


def count_http_agents(db: Db) -> int:
    """Count the HTTP agents that were added and not removed."""
    query = (
        select(func.count()).select_from(_HTTP_AGENTS).where(_HTTP_AGENTS.c.removed_at.is_(None))
    )
    return int(db.atomically(lambda tx: tx.scalar(query)) or 0)


def count_channels(db: Db) -> int:
    """Count the notification channels that were added and not removed."""
    query = select(func.count()).select_from(_CHANNELS).where(_CHANNELS.c.removed_at.is_(None))
    return int(db.atomically(lambda tx: tx.scalar(query)) or 0)


def seconds_since_each_connection(db: Db, application_name: str) -> list[float | None]:
    """Return, per connection of this name, the seconds since its last statement, latest first.

    An entry is None if this login may not see the connection's activity.
    """
    idle = func.extract("epoch", func.now() - _SESSIONS.c.state_change)
    query = (
        select(idle)
        .where(
            _SESSIONS.c.application_name == application_name,
            _SESSIONS.c.datname == func.current_database(),
        )
        .order_by(idle.nulls_last())
    )
    rows = db.atomically(lambda tx: list(tx.scalars(query)))
    return [None if seconds is None else float(seconds) for seconds in rows]


def seconds_since_last_sweep(db: Db) -> float | None:
    """Return the seconds since any maintenance sweep began; None if no sweep ever ran."""
    age = func.extract("epoch", func.clock() - func.max(SweepRunRow.started_at))
    seconds = db.atomically(lambda tx: tx.scalar(select(age)))
    return None if seconds is None else float(seconds)
