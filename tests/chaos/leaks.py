"""Find leaks: processes that outlive their service, and connections that stay open."""

import signal
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import psutil
import psycopg2

from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.checks import Findings, named
from tests.chaos.stack import ChaosStack, Departure, Exit, Service

# What a process answers SIGTERM with: leaving, or the default while it is still starting.
ORDERLY: Final = {0, 128 + signal.SIGTERM}
KILLED: Final = 128 + signal.SIGKILL
# How long connections of whoever has gone may take to be noticed.
NOTICED_SECONDS: Final = 10.0


class Held(NamedTuple):
    """How many connections a process may hold at rest, and each child of its pool besides."""

    postgres: int
    redis: int
    postgres_per_child: int = 0
    redis_per_child: int = 0


# As counted on an idle stack after work without faults: whatever is above comes from the faults,
# and would grow with every fault.
HELD: Final = {
    # To Redis one for each caller it ever served at once, those that gave up waiting included.
    "api": Held(postgres=5, redis=20),
    "dispatcher": Held(postgres=2, redis=4),
    # To Redis six as a worker, one to wake others, and those that Celery keeps for its commands.
    "maintenance": Held(postgres=2, redis=12),
    "beat": Held(postgres=0, redis=2),
    # Its main process opens one to Postgres for each word and closes it.
    "worker": Held(postgres=1, redis=6, postgres_per_child=2, redis_per_child=3),
}


def at_rest(stack: ChaosStack) -> Findings:
    """What a deployment that has nothing to do holds too much of, while all of it still runs."""
    deadline = time.monotonic() + NOTICED_SECONDS
    return named(
        {
            "processes that belong to nobody": _lasting(stack.strays, deadline),
            "more connections than a deployment at rest holds": _lasting(
                lambda: _hoarded(stack), deadline
            ),
            "connections that only a server knows": _lasting(lambda: _forgotten(stack), deadline),
        }
    )


def exits(ends: Iterable[Exit], *explained: int) -> Findings:
    """Ends of processes that nothing done to them explains; `explained` codes are no wonder."""
    return named(
        {
            "processes that ended by themselves": [
                f"{one.service}: {one.code}" + (f" after {one.sent.name}" if one.sent else "")
                for one in ends
                if one.code not in explained and not _is_explained(one)
            ]
        }
    )


def departure(stack: ChaosStack, gone: Departure) -> Findings:
    """What is left when every process was asked to go: nothing, and each went in order."""
    deadline = time.monotonic() + NOTICED_SECONDS
    return named(
        {
            "processes that would not end in order": [
                f"{name}: {code}" for name, code in gone.codes.items() if code not in ORDERLY
            ],
            "surviving processes": gone.survivors,
            "connections that nobody closed": _lasting(lambda: _left_open(stack), deadline),
            "connections that only a server knows": _lasting(lambda: _forgotten(stack), deadline),
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


def _lasting(look: Callable[[], list[str]], deadline: float) -> list[str]:
    """Return what a look finds and goes on finding."""
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _hoarded(stack: ChaosStack) -> list[str]:
    found = []
    for service in stack.services.values():
        children = int(service.settings.concurrency) if service.command == "worker" else 0
        held = HELD[service.command]
        most = (
            held.postgres + children * held.postgres_per_child,
            held.redis + children * held.redis_per_child,
        )
        now = _carried(service)
        if any(count > limit for count, limit in zip(now, most, strict=True)):
            found.append(f"{service.name}: {now} to Postgres and Redis, {most} at most")
    return found


def _carried(service: Service) -> tuple[int, int]:
    return service.postgres.open_connections, service.redis.open_connections


def _left_open(stack: ChaosStack) -> list[str]:
    """Connections on a link though nobody should be there to hold them."""
    return [
        f"{service.name}: {_carried(service)} to Postgres and Redis"
        for service in stack.services.values()
        if any(_carried(service))
    ]


def _forgotten(stack: ChaosStack) -> list[str]:
    """Connections that a server holds to nobody: every other end is in this process, in a link."""
    ours = {one.laddr.port for one in psutil.Process().net_connections("tcp4") if one.laddr}
    return [told for port, told in [*_backends(stack), *_clients(stack)] if port not in ours]


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
