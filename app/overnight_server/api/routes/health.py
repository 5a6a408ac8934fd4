"""The routes of health: whether the process lives, and whether it can serve."""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from overnight_server.api.http.dependencies import Use
from overnight_server.insight.workers import health
from overnight_server.store import migrate
from overnight_server.store.db import DatabaseUnreachable
from overnight_server.wakeups.redis_client import fail_fast_client

router = APIRouter(tags=["health"])
REDIS_PATIENCE_SECONDS = 0.5
State = dict[str, Any]


class Alive(BaseModel):
    """A process that answers."""

    status: str = Field("ok", description="That it does.")


class Part(BaseModel):
    """One thing that the service stands on; what is not known of it is left out."""

    model_config = ConfigDict(extra="allow")

    ok: bool = Field(description="Whether it is as it should be.")


class Readiness(BaseModel):
    """Whether requests can be served, and how each part stands."""

    ready: bool = Field(description="Whether they can.")
    database: Part = Field(description="Whether Postgres answers.")
    migrations: Part = Field(description="Whether its schema is this release's.")
    redis: Part = Field(description="Whether Redis answers; not needed.")
    workers: Part = Field(description="Whether anybody works, and on how many slots; not needed.")


@router.get("/health")
def live() -> Alive:
    """Tell that the process answers; nothing else is asked."""
    return Alive()


@router.get(
    "/ready",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Requests cannot be served now."}},
)
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


def _workers(parts: Use) -> State | None:
    """Return the state of the workers, or None if the database cannot tell."""
    try:
        liveness = timedelta(seconds=parts.settings.worker_liveness)
        known = health(parts.db, liveness=liveness)
    except (DatabaseUnreachable, SQLAlchemyError):
        return None
    return {"ok": known.workers > 0, "workers": known.workers, "slots": known.slots}


def _migrations(parts: Use) -> State:
    try:
        current = parts.db.atomically(migrate.revision)
    except (DatabaseUnreachable, SQLAlchemyError):
        return {"ok": False}
    return {"ok": current == migrate.head(), "current": current, "head": migrate.head()}


def _redis_answers(url: str | None) -> bool:
    if url is None:
        return False
    try:
        with fail_fast_client(url, REDIS_PATIENCE_SECONDS) as redis:
            return bool(redis.ping())
    except RedisError:
        return False
