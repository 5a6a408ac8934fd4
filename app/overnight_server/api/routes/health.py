"""Health checks: whether the process is alive, and whether it can serve requests."""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from redis import RedisError

from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.insight.workers import health
from overnight_server.store import migrate
from overnight_server.store.db import DATABASE_ERRORS
from overnight_server.store.schema_fingerprint import SchemaMismatch, check_schema
from overnight_server.wakeups.redis_client import fail_fast_client

router = APIRouter(route_class=ThreadRoute, tags=["health"])
REDIS_TIMEOUT_SECONDS = 0.5
PartState = dict[str, Any]


class Alive(BaseModel):
    """The response of a live process."""

    status: str = Field("ok", description="Always ok.")


class PartStatus(BaseModel):
    """The status of one part that the service needs; other members depend on the part."""

    model_config = ConfigDict(extra="allow")

    ok: bool = Field(description="Whether the part works.")


class Readiness(BaseModel):
    """Whether requests can be served, and the status of each part."""

    ready: bool = Field(description="Whether requests can be served.")
    database: PartStatus = Field(description="Whether Postgres responds.")
    migrations: PartStatus = Field(description="Whether the database serves this release's schema.")
    redis: PartStatus = Field(description="Whether Redis responds; not required.")
    workers: PartStatus = Field(description="Live workers and their slots; not required.")


# Without a thread: it responds even if all threads wait for the database.
@router.get("/health")
async def live() -> Alive:
    """Respond while the process is alive; checks nothing else."""
    return Alive()


@router.get(
    "/ready",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Requests cannot be served now."}},
)
def ready(response: Response, deps: Injected) -> dict[str, Any]:
    """Return whether requests can be served, with the status of each part.

    Redis and workers are reported but not required: tasks are accepted without them and
    run when they are back.
    """
    workers = _workers(deps)
    database = {"ok": workers is not None}
    migrations = _migrations(deps) if workers is not None else {"ok": False}
    is_ready = bool(database["ok"] and migrations["ok"])
    if not is_ready:
        response.status_code = 503
    return {
        "ready": is_ready,
        "database": database,
        "migrations": migrations,
        "redis": {"ok": _redis_responds(deps.settings.redis_url)},
        "workers": workers or {"ok": False},
    }


def _workers(deps: Injected) -> PartState | None:
    """Return the state of the workers, or None if the database does not respond."""
    try:
        liveness = timedelta(seconds=deps.settings.worker_liveness)
        state = health(deps.db, liveness=liveness)
    except DATABASE_ERRORS:
        return None
    return {"ok": state.workers > 0, "workers": state.workers, "slots": state.slots}


def _migrations(deps: Injected) -> PartState:
    try:
        current = deps.db.atomically(migrate.current_revision)
        is_served = deps.db.atomically(check_schema)
    except DATABASE_ERRORS:
        return {"ok": False}
    except SchemaMismatch:
        is_served = False
    return {"ok": is_served, "current": current, "head": migrate.head()}


def _redis_responds(url: str | None) -> bool:
    if url is None:
        return False
    try:
        with fail_fast_client(url, REDIS_TIMEOUT_SECONDS) as redis:
            return bool(redis.ping())
    except RedisError:
        return False
