"""The processes of the Procfile, each in the foreground until it is told to stop."""

import os
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Never

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight_server.settings import Settings

# -P: a module of the working directory must not replace one that Celery imports.
CELERY = ("-P", "-m", "overnight_worker")
GRACE = 5
BACKLOG = 2048


def api() -> None:
    """Serve the HTTP API."""
    import uvicorn

    from overnight_server.api.main import create_app
    from overnight_server.api.server import Server
    from overnight_server.fault_points import arm
    from overnight_server.telemetry import Event, configure, emit

    settings = _needing_database()
    configure(settings.log_format, settings.log_level, "api")
    arm(settings.fault)
    listener = _listen(settings.api_host, settings.api_port)
    address = f"http://{settings.api_host}:{listener.getsockname()[1]}"
    served = create_app(settings)
    server = Server(
        served,
        uvicorn.Config(
            served,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        ),
    )
    # The server raises the signal again when it is done; being told to stop is no failure.
    signal.signal(signal.SIGTERM, _leave)
    emit(Event.SERVICE_STARTED, role="api", pid=os.getpid(), address=address)
    try:
        server.run(sockets=[listener])
    finally:
        emit(Event.SERVICE_STOPPED, role="api", pid=os.getpid())


def dispatcher() -> None:
    """Claim tasks for free slots and send them to the workers."""
    from overnight_server.dispatch.loop import run

    run(_needing_servers())


def worker(
    *,
    pool: Annotated[str | None, typer.Option(help="The pool it serves.")] = None,
    capabilities: Annotated[
        str | None, typer.Option(metavar="A,B", help="What its pool can do.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="How many tasks it runs at once.")
    ] = None,
) -> None:
    """Run tasks: a Celery worker for one pool."""
    chosen = {"POOL": pool, "CAPABILITIES": capabilities, "CONCURRENCY": concurrency}
    for name, value in chosen.items():
        if value is not None:
            os.environ[f"OVERNIGHT_{name}"] = str(value)
    _become(worker_arguments(_needing_servers()))


def maintenance() -> None:
    """Run the sweeps that beat asks for: a Celery worker of its own."""
    _needing_servers()
    _become(maintenance_arguments())


def beat() -> None:
    """Say when each sweep is due."""
    _needing_servers()
    _become(beat_arguments())


def flower() -> None:
    """Show Celery's workers and messages to operators, behind a password."""
    settings = _needing_servers()
    if not settings.flower_password:
        raise Failure(
            "Flower needs a password",
            hint="Set OVERNIGHT_FLOWER_PASSWORD; `overnight up` makes one by itself.",
            code=Code.USAGE,
        )
    # By environment, because arguments show in the process list.
    os.environ["FLOWER_BASIC_AUTH"] = f"{settings.flower_user}:{settings.flower_password}"
    _become(flower_arguments(settings))


def worker_arguments(settings: "Settings") -> list[str]:
    """Return how Celery is told to work for a pool."""
    from overnight_server.dispatch.celery_settings import agent_queue

    return [
        *("worker", "-Q", agent_queue(settings.pool), "-n", f"{settings.pool}.{os.getpid()}@%h"),
        *("-c", str(settings.concurrency), "--pool", "prefork"),
        *("--without-gossip", "--without-mingle"),
    ]


def maintenance_arguments() -> list[str]:
    """Return how Celery is told to run the sweeps, one after the other."""
    from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE

    return [
        *("worker", "-Q", MAINTENANCE_QUEUE, "-n", f"maintenance.{os.getpid()}@%h"),
        *("--pool", "solo", "--without-gossip", "--without-mingle"),
    ]


def beat_arguments() -> list[str]:
    """Return how beat is told to tick; it keeps nothing on disk, since every tick is repeatable."""
    return ["beat", "--scheduler", "overnight_worker.beat_scheduler:Scheduler"]


def flower_arguments(settings: "Settings") -> list[str]:
    """Return how Flower is told where to listen; it may look, but not touch."""
    from overnight_server.local.ports import free_port

    # Flower itself would take 0 for a port like any other.
    port = settings.flower_port or free_port()
    return [
        *("flower", f"--address={settings.flower_host}", f"--port={port}"),
        *("--read_only=True", "--persistent=False", "--max_tasks=5000"),
        "--tasks_columns=name,uuid,state,args,received,runtime,worker",
    ]


def _needing_database() -> "Settings":
    settings = database.settings()
    if settings.database_url is None:
        raise Failure("no database is known here", hint=database.ADVICE)
    _check_schema(settings.database_url)
    return settings


def _check_schema(url: str) -> None:
    """Refuse to start on a database that another version created."""
    from overnight_server.store import migrate
    from overnight_server.store.schema_fingerprint import ADVICE, SchemaMismatch

    try:
        migrate.check(url)
    except SchemaMismatch as error:
        raise Failure(str(error), hint=ADVICE) from error


def _needing_servers() -> "Settings":
    settings = _needing_database()
    if settings.redis_url is None:
        raise Failure(
            "no Redis is known here",
            hint="Start the local deployment with `overnight up`, or set OVERNIGHT_REDIS_URL.",
        )
    return settings


def _become(arguments: list[str]) -> Never:
    """Go on as Celery in this very process, so that signals reach it and nothing stands between."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *CELERY, *arguments])  # noqa: S606 - our own program


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Failure(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="Choose another with OVERNIGHT_API_HOST and OVERNIGHT_API_PORT.",
        ) from error
    # Connections inherit it. Otherwise an answer's body waits for word that its head has arrived,
    # which callers hold back for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _leave(_signal: int, _frame: FrameType | None) -> Never:
    raise SystemExit(Code.OK)
