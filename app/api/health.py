"""The routes of health: whether the process lives, and whether it can serve."""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Response
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from app.api.parts import Use
from app.events.patience import impatient
from app.insight.health import health
from app.store import migrate
from app.store.db import DatabaseUnreachable

router = APIRouter(tags=["health"])
REDIS_PATIENCE_SECONDS = 0.5
Part = dict[str, Any]


@router.get("/health")
def live() -> dict[str, str]:
    """Tell that the process answers; nothing else is asked."""
    return {"status": "ok"}


@router.get("/ready")
def ready(response: Response, parts: Use) -> dict[str, Any]:
    """Tell, part by part, whether requests can be served.

    Redis and workers are reported but not required: tasks are accepted without them and
    run when they are back.
    """
    workers = _workers(parts)
    database = {"ok": workers is not None}
    migrations = _migrations(parts) if workers is not None else {"ok": False}
    is_ready = bool(database["ok"] and migrations["ok"])
    if not is_ready:
        response.status_code = 503
    return {
        "ready": is_ready,
        "database": database,
        "migrations": migrations,
        "redis": {"ok": _redis_answers(parts.settings.redis_url)},
        "workers": workers or {"ok": False},
    }


def _workers(parts: Use) -> Part | None:
    """Return the state of the workers, or None if the database cannot tell."""
    try:
        liveness = timedelta(seconds=parts.settings.worker_liveness)
        known = health(parts.db, liveness=liveness)
    except (DatabaseUnreachable, SQLAlchemyError):
        return None
    return {"ok": known.workers > 0, "workers": known.workers, "slots": known.slots}


def _migrations(parts: Use) -> Part:
    try:
        current = parts.db.atomically(migrate.revision)
    except (DatabaseUnreachable, SQLAlchemyError):
        return {"ok": False}
    return {"ok": current == migrate.head(), "current": current, "head": migrate.head()}


def _redis_answers(url: str | None) -> bool:
    if url is None:
        return False
    try:
        with impatient(url, REDIS_PATIENCE_SECONDS) as redis:
            return bool(redis.ping())
    except RedisError:
        return False
