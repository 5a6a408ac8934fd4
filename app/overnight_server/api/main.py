"""The API process: builds the FastAPI app from routes, dashboard, error handlers and middleware."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI
from starlette.routing import Route

from overnight_server.api.http import problems
from overnight_server.api.http.compression import CompressResponses
from overnight_server.api.http.dependencies import Dependencies, TokenVerifier
from overnight_server.api.http.expensive_calls import (
    MAX_RUNNING,
    MAX_RUNNING_LATER,
    TIMEOUTS,
    ExpensiveCalls,
)
from overnight_server.api.http.middleware import AddSecurityHeaders, ReplaceNulInPath
from overnight_server.api.http.openapi import ERROR_RESPONSES, DescribedApi
from overnight_server.api.http.rate_limit import RateLimiter
from overnight_server.api.http.request_memory import RequestMemory
from overnight_server.api.http.trace_requests import TraceRequests
from overnight_server.api.http.unknown_path import UnknownPath
from overnight_server.api.metrics_port import serve_metrics
from overnight_server.api.routes import (
    account,
    admin_audit,
    admin_budgets,
    admin_inbox,
    admin_keys,
    admin_operations,
    admin_retention,
    admin_tasks,
    admin_users,
    agent_profiles,
    agents,
    bulk,
    dags,
    dead_letters,
    description,
    event_stream,
    health,
    hooks,
    keys,
    logs,
    me,
    metrics,
    nights,
    notifications,
    plan,
    queue,
    records,
    rules,
    runs,
    schedules,
    tasks,
    triggers,
)
from overnight_server.artifact_store.store import open_store
from overnight_server.dashboard import routes as dashboard
from overnight_server.dashboard.last_results import LastResults
from overnight_server.dashboard.sign_in import AttemptLimit
from overnight_server.event_log.feed import Feed
from overnight_server.forecast.simulation_process import SimulationProcess
from overnight_server.insight.known_types import KnownTypes
from overnight_server.settings import Settings
from overnight_server.settings import load as load_settings
from overnight_server.store.db import ADMIN, APP, GATE, Db, Timeouts
from overnight_server.traces import open_traces
from overnight_server.wakeups.agent_long_poll import AgentLongPoll
from overnight_server.wakeups.log_feed import LogFeed
from overnight_server.wakeups.wake import Waker

ROUTES = (
    *(tasks, bulk, dags, event_stream, records, logs, dead_letters, triggers, schedules, hooks),
    *(rules, plan, me, account, queue, agents, runs, agent_profiles, notifications),
    *(keys, admin_keys, admin_users, admin_operations),
    *(admin_tasks, admin_budgets, admin_inbox, admin_audit, admin_retention),
    *(health, metrics, description),
    nights,
)


MEGABYTE = 1024 * 1024


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
        # The document is a route like any other: it needs a key.
        openapi_url=None,
        # FastAPI's own documentation pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERROR_RESPONSES,
        lifespan=_close_at_shutdown,
    )
    waker = _waker(settings)
    db = _database(settings, APP, settings.database_pool_size, waker)
    gate_db = _database(settings, GATE, settings.database_pool_size, waker)
    deps = Dependencies(
        settings,
        db,
        Feed(db, per_user=settings.max_streams_per_user),
        LogFeed(
            settings.redis_url,
            settings.redis_key_prefix,
            per_user=settings.max_streams_per_user,
        ),
        # One connection is enough for the few admins, besides the one that a report is read with.
        admin_db=_database(settings, ADMIN, 2, waker),
        gate_db=gate_db,
        agent_long_poll=AgentLongPoll(db, per_user=settings.max_streams_per_user),
        claim_limiter=CapacityLimiter(settings.database_pool_size),
        known_types=KnownTypes(gate_db, settings.worker_liveness),
        request_memory=RequestMemory(settings.request_memory_mb * MEGABYTE),
        expensive=ExpensiveCalls(
            _database(settings, APP, MAX_RUNNING + MAX_RUNNING_LATER, waker, TIMEOUTS)
        ),
        simulation_process=SimulationProcess(),
        artifact_store=open_store(settings.artifact_store),
        token_verifier=_token_verifier(settings),
        rate_limiter=_rate_limiter(settings),
    )
    api.state.dependencies = deps
    created = (
        *(db, waker, deps.admin_db, deps.gate_db, deps.expensive.db),
        *(deps.rate_limiter, deps.simulation_process),
    )
    api.state.closed_at_shutdown = [resource for resource in created if resource is not None]
    for module in ROUTES:
        api.include_router(module.router)
    api.router.routes.append(Route(hooks.PATH, hooks.receive_hook, methods=["POST"]))
    api.router.routes.append(Route("/api/v1/{path:path}", UnknownPath()))
    api.router.routes.extend(dashboard.routes())
    api.state.sign_in_limit = AttemptLimit()
    api.state.last_results = LastResults()
    problems.install(api)
    # Building the schema takes half a second, so this is done before the first request.
    api.openapi()
    api.add_middleware(CompressResponses)
    api.add_middleware(ReplaceNulInPath)
    api.add_middleware(AddSecurityHeaders)
    api.add_middleware(problems.AnswerWhenStopped)
    traces = open_traces(settings.trace_endpoint, "overnight-api")
    if traces is not None:
        api.state.closed_at_shutdown.append(traces)
        api.add_middleware(TraceRequests, traces=traces)
    return api


@asynccontextmanager
async def _close_at_shutdown(api: FastAPI) -> AsyncIterator[None]:
    """Close the connections of the app when it shuts down."""
    with serve_metrics(api.state.dependencies):
        yield
    for resource in api.state.closed_at_shutdown:
        resource.close()


def _database(
    settings: Settings,
    role: str,
    pool_size: int,
    waker: Waker | None,
    timeouts: Timeouts | None = None,
) -> Db:
    if settings.database_url is None:
        raise ValueError("OVERNIGHT_DATABASE_URL is not set; the API needs a database")
    return Db.connect(
        settings.database_url,
        role=role,
        application_name="overnight-api",
        pool_size=pool_size,
        timeouts=timeouts,
        wake_ups=waker,
    )


def _token_verifier(settings: Settings) -> TokenVerifier | None:
    if not settings.jwt_algorithms:
        return None
    # Importing cryptography is slow, and most deployments use API keys only.
    from overnight_server.control.tokens import JwtVerifier  # noqa: PLC0415

    return JwtVerifier.of(settings)


def _rate_limiter(settings: Settings) -> RateLimiter | None:
    if settings.redis_url is None or not settings.rate_limit_per_second:
        return None
    return RateLimiter(
        settings.redis_url,
        settings.redis_key_prefix,
        per_second=settings.rate_limit_per_second,
        burst=settings.rate_limit_burst,
    )


def _waker(settings: Settings) -> Waker | None:
    if settings.redis_url is None:
        return None
    return Waker(settings.redis_url, settings.redis_key_prefix)
