"""The API process: routes, errors and headers put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI

from overnight_server.api.http import problems
from overnight_server.api.http.dependencies import Parts, Verifier
from overnight_server.api.http.middleware import BoundedBodies, PrivateAnswers, SoundPaths
from overnight_server.api.http.openapi import REFUSALS, DescribedApi
from overnight_server.api.http.rate_limit import Rates
from overnight_server.api.routes import (
    account,
    admin_keys,
    admin_operations,
    admin_users,
    agents,
    bulk,
    dags,
    dead_letters,
    event_stream,
    health,
    keys,
    me,
    plan,
    queue,
    records,
    runs,
    tasks,
    triggers,
)
from overnight_server.event_log.feed import Feed
from overnight_server.settings import Settings
from overnight_server.settings import load as load_settings
from overnight_server.store.db import ADMIN, APP, GATE, Db
from overnight_server.wakeups.agent_long_poll import AgentLongPoll
from overnight_server.wakeups.wake import Waker

ROUTES = (
    *(tasks, bulk, dags, event_stream, records, dead_letters, triggers, plan, me, account, queue),
    *(agents, runs),
    *(keys, admin_keys, admin_users, admin_operations, health),
)


def app() -> FastAPI:
    """Build the API from the environment: `uvicorn overnight_server.api.main:app --factory`."""
    return create_app(load_settings())


def create_app(settings: Settings) -> FastAPI:
    """Build the API with connections made from the settings; they are closed when it shuts down.

    The database need not be up yet: until it is, requests are answered with 503.
    """
    api = DescribedApi(
        title="Overnight",
        summary="Queue work before bed; find it done in the morning.",
        openapi_url="/api/v1/openapi.json",
        # The stock pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=REFUSALS,
        lifespan=_closing_connections,
    )
    waker = _waker(settings)
    db = _database(settings, APP, settings.database_pool_size, waker)
    parts = Parts(
        settings,
        db,
        Feed(db, per_user=settings.max_streams_per_user),
        # Admins are few.
        admin_db=_database(settings, ADMIN, 1, waker),
        gate_db=_database(settings, GATE, settings.database_pool_size, waker),
        bell=AgentLongPoll(db, per_user=settings.max_streams_per_user),
        claim_places=CapacityLimiter(settings.database_pool_size),
        tokens=_verifier(settings),
        rates=_rates(settings),
    )
    api.state.parts = parts
    api.state.to_close = [
        part for part in (db, waker, parts.admin_db, parts.gate_db, parts.rates) if part is not None
    ]
    for module in ROUTES:
        api.include_router(module.router)
    problems.install(api)
    api.openapi()  # now, while nobody waits for the loop
    api.add_middleware(SoundPaths)
    api.add_middleware(BoundedBodies)
    api.add_middleware(PrivateAnswers)
    return api


@asynccontextmanager
async def _closing_connections(api: FastAPI) -> AsyncIterator[None]:
    """Close the connections of the app when it shuts down."""
    yield
    for part in api.state.to_close:
        part.close()


def _database(settings: Settings, role: str, pool_size: int, waker: Waker | None) -> Db:
    if settings.database_url is None:
        raise ValueError("OVERNIGHT_DATABASE_URL is not set; the API needs its database")
    return Db.connect(
        settings.database_url,
        role=role,
        application_name="overnight-api",
        pool_size=pool_size,
        wake_ups=waker,
    )


def _verifier(settings: Settings) -> Verifier | None:
    if not settings.jwt_algorithms:
        return None
    # Cryptography takes a while to load, and most deployments know keys only.
    from overnight_server.control.tokens import Tokens  # noqa: PLC0415

    return Tokens.of(settings)


def _rates(settings: Settings) -> Rates | None:
    if settings.redis_url is None or not settings.rate_limit_per_second:
        return None
    return Rates(
        settings.redis_url,
        settings.redis_key_prefix,
        per_second=settings.rate_limit_per_second,
        burst=settings.rate_limit_burst,
    )


def _waker(settings: Settings) -> Waker | None:
    if settings.redis_url is None:
        return None
    return Waker(settings.redis_url, settings.redis_key_prefix)
