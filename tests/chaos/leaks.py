"""Find leaks: processes that outlive their service, and connections that stay open."""

import signal
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import psutil
import psycopg2

from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.checks import Findings, as_findings
from tests.chaos.stack import HTTP_AGENTS, ChaosStack, Exit, Service, Shutdown

# Exit codes after SIGTERM: an orderly end, or the default action while the process starts.
ORDERLY: Final = {0, 128 + signal.SIGTERM}
KILLED: Final = 128 + signal.SIGKILL
# How long a server may take to notice that a client is shutdown.
NOTICED_SECONDS: Final = 10.0


class ConnectionLimit(NamedTuple):
    """How many connections an idle service may hold, and each child of its pool besides."""

    postgres: int
    redis: int
    postgres_per_child: int = 0
    redis_per_child: int = 0


# Counted on an idle stack after work without faults: connections above these limits were leaked
# by faults, and would grow with every fault.
LIMITS: Final = {
    # To Postgres the pools for users' requests and for pull agents, and one for admins. To Redis
    # one for each of the 40 threads that serve requests, if all of them were busy at the same
    # time, and those of wake-ups and of the publisher.
    "api": ConnectionLimit(postgres=11, redis=44),
    "dispatcher": ConnectionLimit(postgres=2, redis=4),
    # To Redis six as a worker, one for wake-ups, and those that Celery keeps for remote control.
    "maintenance": ConnectionLimit(postgres=2, redis=12),
    "beat": ConnectionLimit(postgres=0, redis=2),
    # The main process opens a connection to Postgres for each statement and closes it. To Redis it
    # has six, and those that Celery keeps for remote control.
    "worker": ConnectionLimit(postgres=1, redis=8, postgres_per_child=2, redis_per_child=3),
    # To Postgres one for each thread, to Redis those of wake-ups and of requests to cancel.
    "agent-driver": ConnectionLimit(postgres=4, redis=3),
    HTTP_AGENTS: ConnectionLimit(postgres=0, redis=0),
}


def at_rest(stack: ChaosStack) -> Findings:
    """Find orphaned processes and excess connections of an idle stack that still runs."""
    deadline = time.monotonic() + NOTICED_SECONDS
    return as_findings(
        {
            "processes that belong to no service": _remaining(stack.orphans, deadline),
            "more connections than an idle stack needs": _remaining(
                lambda: _excess_connections(stack), deadline
            ),
            "server connections without a client": _remaining(
                lambda: _dead_connections(stack), deadline
            ),
        }
    )


def exits(ends: Iterable[Exit], *explained: int) -> Findings:
    """Find exits that no signal explains; exits with a code in `explained` are expected."""
    return as_findings(
        {
            "processes that ended without a signal": [
                f"{one.service}: {one.code}" + (f" after {one.sent.name}" if one.sent else "")
                for one in ends
                if one.code not in explained and not _is_explained(one)
            ]
        }
    )


def after_shutdown(stack: ChaosStack, shutdown: Shutdown) -> Findings:
    """Find services that did not end in order, and processes and connections that are left."""
    deadline = time.monotonic() + NOTICED_SECONDS
    return as_findings(
        {
            "services that did not end in order": [
                f"{name}: {code}" for name, code in shutdown.codes.items() if code not in ORDERLY
            ],
            "surviving processes": shutdown.survivors,
            "connections that were not closed": _remaining(lambda: _open_links(stack), deadline),
            "server connections without a client": _remaining(
                lambda: _dead_connections(stack), deadline
            ),
        }
    )


def _is_explained(one: Exit) -> bool:
    match one.sent:
        case signal.SIGKILL:
            return one.code == KILLED or one.code in ORDERLY
        case signal.SIGTERM:
            return one.code in ORDERLY
        case _:
            return False


def _remaining(find: Callable[[], list[str]], deadline: float) -> list[str]:
    """Call `find` until it returns nothing; return its last findings at the deadline."""
    while (findings := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return findings


def _excess_connections(stack: ChaosStack) -> list[str]:
    findings = []
    for service in stack.services.values():
        children = int(service.settings.concurrency) if service.command == "worker" else 0
        limit = LIMITS[service.command]
        most = (
            limit.postgres + children * limit.postgres_per_child,
            limit.redis + children * limit.redis_per_child,
        )
        now = _open_connections(service)
        if any(count > limit for count, limit in zip(now, most, strict=True)):
            findings.append(f"{service.name}: {now} to Postgres and Redis, {most} at most")
    return findings


def _open_connections(service: Service) -> tuple[int, int]:
    return service.postgres.open_connections, service.redis.open_connections


def _open_links(stack: ChaosStack) -> list[str]:
    """Return links with open connections after all services have ended."""
    return [
        f"{service.name}: {_open_connections(service)} to Postgres and Redis"
        for service in stack.services.values()
        if any(_open_connections(service))
    ]


def _dead_connections(stack: ChaosStack) -> list[str]:
    """Return server connections without a client; every client end is a link in this process."""
    ours = {one.laddr.port for one in psutil.Process().net_connections("tcp4") if one.laddr}
    return [client for port, client in [*_backends(stack), *_clients(stack)] if port not in ours]


def _backends(stack: ChaosStack) -> list[tuple[int, str]]:
    connection = psycopg2.connect(stack.postgres.superuser_url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT client_port, application_name, state FROM pg_stat_activity"
                " WHERE datname = 'overnight' AND pid <> pg_backend_pid()"
            )
            return [(port, f"Postgres: {name} {state}") for port, name, state in cursor.fetchall()]
    finally:
        connection.close()


def _clients(stack: ChaosStack) -> list[tuple[int, str]]:
    with fail_fast_client(stack.redis.url) as client:
        own = client.client_id()
        return [
            (int(one["addr"].rpartition(":")[2]), f"Redis: {one['cmd']}, idle for {one['idle']} s")
            for one in client.client_list()
            if int(one["id"]) != own
        ]
