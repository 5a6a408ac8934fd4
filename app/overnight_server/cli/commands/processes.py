"""The processes of the Procfile, and `overnight mcp`: each runs until it gets a signal."""

import asyncio
import os
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Never

import typer

from overnight_server.cli import connection, database
from overnight_server.cli.terminal import options
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight_server.settings import Settings

# -P: a module of the working directory must not replace one that Celery imports.
CELERY = ("-P", "-m", "overnight_worker")
BACKLOG = 2048


def api(
    *,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Number of processes that share the port."),
    ] = None,
) -> None:
    """Serve the HTTP API."""
    if processes is not None:
        os.environ["OVERNIGHT_API_PROCESSES"] = str(processes)
    _drop_foreign_secrets("api")
    settings = database.settings_with_database()
    _check_schema(str(settings.database_url))
    _watch_schema(settings, "api")
    listener = _listen(settings.api_host, settings.api_port)
    if settings.api_processes == 1:
        from overnight_server.api.server import serve
    else:
        from overnight_server.api.process_group import serve_in_processes as serve
    serve(settings, listener)


def dispatcher() -> None:
    """Claim tasks for free slots and send them to the workers."""
    from overnight_server.dispatch.loop import run

    _drop_foreign_secrets("dispatcher")
    settings = _settings()
    _watch_schema(settings, "dispatcher")
    run(settings)


def agent_driver() -> None:
    """Send tasks to HTTP agents and follow them."""
    from overnight_server.agent_driver.driver import run

    _drop_foreign_secrets("agent-driver")
    settings = _settings()
    _watch_schema(settings, "agent-driver")
    run(settings)


def notifier() -> None:
    """Send notifications to the channels of users."""
    from overnight_server.notifier.notifier import run

    _drop_foreign_secrets("notifier")
    settings = _settings()
    _watch_schema(settings, "notifier")
    run(settings)


def worker(
    *,
    pool: Annotated[str | None, typer.Option(help="Pool of the worker.")] = None,
    capabilities: Annotated[
        str | None, typer.Option(metavar="A,B", help="Capabilities of the worker.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="Number of tasks that run at the same time.")
    ] = None,
) -> None:
    """Run tasks: a Celery worker for one pool."""
    values = {"POOL": pool, "CAPABILITIES": capabilities, "CONCURRENCY": concurrency}
    for name, value in values.items():
        if value is not None:
            os.environ[f"OVERNIGHT_{name}"] = str(value)
    _exec_celery("worker", worker_arguments(_settings()))


def maintenance() -> None:
    """Run the sweeps that beat schedules, in a Celery worker of their own."""
    _settings()
    _exec_celery("maintenance", maintenance_arguments())


def beat() -> None:
    """Schedule the sweeps: Celery beat."""
    _settings()
    _exec_celery("beat", beat_arguments())


def flower() -> None:
    """Serve Flower, which shows Celery's workers and messages, behind a password."""
    _check_celery()
    settings = database.settings_with_redis()
    if not settings.flower_password:
        raise CommandFailure(
            "Flower needs a password.",
            hint="Set OVERNIGHT_FLOWER_PASSWORD; `overnight up` creates one.",
            code=Code.USAGE,
        )
    # In the environment, because every user of the machine can read arguments.
    os.environ["FLOWER_BASIC_AUTH"] = f"{settings.flower_user}:{settings.flower_password}"
    _exec_celery("flower", flower_arguments(settings))


def mcp(*, url: options.Url = None, api_key_file: options.KeyFile = None) -> None:
    """Serve your queue to an agent as MCP tools, over stdin and stdout.

    Inside a running task, whose environment names its claim, also the tools of that run.
    """
    if find_spec("mcp") is None:
        message = "`overnight mcp` needs the MCP SDK: pip install 'overnight[mcp]'"
        raise CommandFailure(message, code=Code.USAGE)
    from overnight.mcp.server import TaskClaim, serve

    server = connection.find_server(url, api_key_file)
    task_id, token = _claim()
    claim = TaskClaim(task_id, token) if task_id and token else None
    asyncio.run(serve(server.url, server.api_key, claim))


def _claim() -> tuple[str | None, str | None]:
    """Return the task and the claim token of the run that started this process, if any."""
    try:
        settings = connection.settings()
    except ModuleNotFoundError:  # the plain install has no settings; the environment is enough
        return os.environ.get("OVERNIGHT_TASK_ID"), os.environ.get("OVERNIGHT_CLAIM_TOKEN")
    return settings.task_id, settings.claim_token


def worker_arguments(settings: "Settings") -> list[str]:
    """Return the arguments of the Celery worker of a pool."""
    from overnight_server.dispatch.celery_settings import agent_queue

    return [
        *("worker", "-Q", agent_queue(settings.pool), "-n", f"{settings.pool}.{os.getpid()}@%h"),
        *("-c", str(settings.concurrency), "--pool", "prefork"),
        *("--without-gossip", "--without-mingle"),
    ]


def maintenance_arguments() -> list[str]:
    """Return the arguments of the Celery worker that runs the sweeps one after the other."""
    from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE

    return [
        *("worker", "-Q", MAINTENANCE_QUEUE, "-n", f"maintenance.{os.getpid()}@%h"),
        *("--pool", "solo", "--without-gossip", "--without-mingle"),
    ]


def beat_arguments() -> list[str]:
    """Return the arguments of beat; it stores no schedule, because every sweep can be repeated."""
    return ["beat", "--scheduler", "overnight_worker.beat_scheduler:Scheduler"]


def flower_arguments(settings: "Settings") -> list[str]:
    """Return the arguments of Flower, which is read-only."""
    from overnight_server.local.ports import free_port

    # Flower does not choose a free port for 0.
    port = settings.flower_port or free_port()
    return [
        *("flower", f"--address={settings.flower_host}", f"--port={port}"),
        *("--read_only=True", "--persistent=False", "--max_tasks=5000"),
        "--tasks_columns=name,uuid,state,args,received,runtime,worker",
    ]


def _settings() -> "Settings":
    """Return the settings of a process; raise ModuleNotFoundError without the server's packages."""
    _check_celery()
    settings = database.settings_with_servers()
    _check_schema(str(settings.database_url))
    return settings


def _check_celery() -> None:
    """Raise ModuleNotFoundError without the server's packages."""
    if sys.modules.get("celery", ...) is None or find_spec("celery") is None:
        raise ModuleNotFoundError("celery is not installed", name="celery")


def _check_schema(url: str) -> None:
    """Raise CommandFailure if another release created the tables, or the server is too old."""
    from overnight_server.store import migrate

    with database.reported_failures():
        migrate.check(url)


def _watch_schema(settings: "Settings", role: str) -> None:
    """Let this process end when a migration does not serve it; Celery's processes have a timer."""
    from overnight_server.store.schema_watch import watch_schema

    watch_schema(str(settings.database_url), role)


def _exec_celery(process: str, arguments: list[str]) -> Never:
    """Replace this process by Celery, so that signals reach Celery directly."""
    from overnight_server.settings.process_secrets import own_environment

    command = [sys.executable, *CELERY, *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, own_environment(process, os.environ))  # noqa: S606 - our own


def _drop_foreign_secrets(process: str) -> None:
    """Remove the secrets that this process does not need from its environment."""
    from overnight_server.settings.process_secrets import own_environment

    for name in os.environ.keys() - own_environment(process, os.environ).keys():
        del os.environ[name]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CommandFailure(
            f"Cannot listen on {host}:{port}: {error.strerror}",
            hint="Set another address with OVERNIGHT_API_HOST and OVERNIGHT_API_PORT.",
        ) from error
    # Connections inherit the option. Without it the body of a response waits until the client has
    # acknowledged the head, which clients delay by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
