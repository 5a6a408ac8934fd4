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


def create_app(settings: Settings, *, db: Db | None = None, waker: Waker | None = None) -> FastAPI:
    """Build the API; parts that are not given are made from the settings and closed with it.

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
        lifespan=_closing_what_is_ours,
    )
    store = db or _database(settings, APP, settings.database_pool_size)
    parts = Parts(
        settings,
        store,
        waker or _waker(settings),
        Feed(store, per_user=settings.max_streams_per_user),
        # Admins are few.
        admin_db=_database(settings, ADMIN, 1),
        gate_db=_database(settings, GATE, settings.database_pool_size),
        bell=AgentLongPoll(store, per_user=settings.max_streams_per_user),
        claim_places=CapacityLimiter(settings.database_pool_size),
        tokens=_verifier(settings),
        rates=_rates(settings),
    )
    api.state.parts = parts
    ours = (
        (parts.db, db),
        (parts.waker, waker),
        (parts.admin_db, None),
        (parts.gate_db, None),
        (parts.rates, None),
    )
    api.state.ours = [part for part, given in ours if given is None and part is not None]
    for module in ROUTES:
        api.include_router(module.router)
    problems.install(api)
    api.openapi()  # now, while nobody waits for the loop
    api.add_middleware(SoundPaths)
    api.add_middleware(BoundedBodies)
    api.add_middleware(PrivateAnswers)
    return api


@asynccontextmanager
async def _closing_what_is_ours(api: FastAPI) -> AsyncIterator[None]:
    """Close at the end what the app made for itself; what it was given belongs to the giver."""
    yield
    for part in api.state.ours:
        part.close()


def _database(settings: Settings, role: str, pool_size: int) -> Db:
    if settings.database_url is None:
        raise ValueError("OVERNIGHT_DATABASE_URL is not set; the API needs its database")
    return Db.connect(
        settings.database_url,
        role=role,
        application_name="overnight-api",
        pool_size=pool_size,
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
