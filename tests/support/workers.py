"""Real Celery workers on real servers, with clocks short enough for a test."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psutil
import psycopg2

from overnight_server.cli.commands.processes import CELERY, worker_arguments
from overnight_server.dispatch.celery_settings import EXECUTE, agent_queue
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Claimed
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import Settings, load
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
# PYTHONPATH of a process that a test starts: it imports this copy of the repository, which may be
# a mutant, and not the installed one.
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("", "app", "workers"))
# No other process of a machine has these among its arguments.
NUMBERS = itertools.count(800_000_000 + os.getpid() * 100)
SHORT_CLOCKS = {
    "ALLOW_SHORT_CLOCKS": "true",
    "LEASE_SECONDS": "3",
    "HEARTBEAT_INTERVAL": "0.5",
    "CANCEL_GRACE": "1",
    "SHUTDOWN_GRACE": "1",
    "CONCURRENCY": "1",
}


def worker_settings(database_url: str, redis_url: str, **changes: object) -> Settings:
    """Return settings for one test: own database, own keys in Redis, short clocks."""
    environment = {name.upper(): str(value) for name, value in changes.items()}
    values = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "REDIS_KEY_PREFIX": f"test-{uuid4().hex[:8]}:",
        "DEMO_HANDLERS": "true",
        **SHORT_CLOCKS,
        **environment,
    }
    return load({f"OVERNIGHT_{name}": value for name, value in values.items()})


def environment(settings: Settings) -> dict[str, str]:
    """Return a process's environment that makes it load the same settings."""
    given = {
        row.env: _written(getattr(settings, row.name))
        for row in settings.masked()
        if row.origin != "default"
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
    return kept | given


def _written(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


@dataclass
class Worker:
    """A running Celery process and its log."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def log_text(self) -> str:
        """Return its log so far."""
        return Path(self.output.name).read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return the processes of its pool."""
        return psutil.Process(self.process.pid).children()

    def signal(self, signum: int) -> None:
        """Send a signal to its main process."""
        self.process.send_signal(signum)

    def ended(self, within: float) -> int:
        """Return its exit code, once it has ended."""
        return self.process.wait(within)


@contextmanager
def running_worker(settings: Settings) -> Iterator[Worker]:
    """Run a worker until the end of the block, then kill what is left of it."""
    with running(worker_arguments(settings), settings) as worker:
        wait_until(
            lambda: "queue=worker_joined" in worker.log_text() or worker.process.poll() is not None,
            what="the worker to join",
        )
        assert worker.process.poll() is None, worker.log_text()
        yield worker


def worker_command(settings: Settings) -> list[str]:
    """Return the Celery command that `overnight worker` executes."""
    return [sys.executable, *CELERY, *worker_arguments(settings)]


@contextmanager
def running(arguments: Sequence[str], settings: Settings, **more: str) -> Iterator[Worker]:
    """Run another of Celery's programs until the end of the block."""
    login = logins.for_service(str(settings.database_url))
    with tempfile.NamedTemporaryFile(prefix="overnight-celery-", suffix=".log") as output:
        process = subprocess.Popen(
            [sys.executable, *CELERY, *arguments],
            cwd=ROOT,
            env=environment(settings) | {"OVERNIGHT_DATABASE_URL": login} | more,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield Worker(process, output)
        finally:
            _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def working_deployment(postgres: EmbeddedPostgres, template: str) -> Iterator[Deployment]:
    """Give several tests a database together, when each a worker of its own would be too slow."""
    name = f"workers_{uuid4().hex[:8]}"
    _as_superuser(postgres, f"CREATE DATABASE {name} TEMPLATE {template} OWNER overnight")
    url = postgres.url(name)
    deployment = Deployment(
        *(Db.connect(url, role=role) for role in ("overnight_owner", DISPATCHER, ADMIN))
    )
    try:
        yield deployment
    finally:
        for db in (deployment.owner, deployment.dispatcher, deployment.app):
            db.close()
        _as_superuser(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def _as_superuser(postgres: EmbeddedPostgres, command: str) -> None:
    connection = psycopg2.connect(postgres.superuser_url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(command)
    finally:
        connection.close()


def listening_on(port: int | None) -> psutil.Process:
    """Return the process that listens on a loopback port."""
    [pid] = {
        connection.pid
        for connection in psutil.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    }
    return psutil.Process(pid)


def is_gone(process: psutil.Process) -> bool:
    """Tell whether a process has ended, also as a zombie that was not reaped yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_with_argument(number: int) -> list[psutil.Process]:
    """Return the processes that have a number among their arguments, also those in sandboxes."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(number) in process.cmdline():
                found.append(process)
    return found


@contextmanager
def marked_processes() -> Iterator[int]:
    """Yield a number for the arguments of a test's processes; none of them is left at the end."""
    number = next(NUMBERS)
    yield number
    left = processes_with_argument(number)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []


@dataclass
class WorkerHarness:
    """A deployment for tests of one worker: submit and publish tasks, and wait for states."""

    deployment: Deployment
    settings: Settings
    publisher: Publisher
    user: UserId

    def send(self, kind: str, payload: Mapping[str, Any] | None = None, **fields: Any) -> TaskId:
        """Submit a task, let the gate claim it, publish it, and see that a worker takes it.

        A worker that has just lost a child may need some seconds for that; what tests time is
        what happens from then on.
        """
        task_id = self.deployment.task(self.user, type=kind, payload=dict(payload or {}), **fields)
        # A slot that has just become free may have claimed the task itself.
        claims = self.deployment.claim().claims
        self.publish(*(claimed for claimed in claims if claimed.claim.task_id == task_id))
        wait_until(
            lambda: self.deployment.state(task_id) not in {"ready", "claimed"},
            timeout=60,
            what="a worker to take it",
        )
        return task_id

    def claimed(self, task_id: TaskId) -> Claimed:
        """Let the gate claim a ready task."""
        [one] = [it for it in self.deployment.claim().claims if it.claim.task_id == task_id]
        return one

    def publish(self, *claims: Claimed) -> None:
        """Send claims as the dispatcher does."""
        assert self.publisher.send(self.settings.pool, claims) == []

    def forge(self, arguments: Sequence[object]) -> None:
        """Send a message that the dispatcher did not create."""
        self.publisher._celery.send_task(EXECUTE, args=arguments, queue=self._queue)

    @property
    def _queue(self) -> str:
        return agent_queue(self.settings.pool)

    def reaches(self, task_id: TaskId, state: str, timeout: float = 15) -> Mapping[str, Any]:
        """Wait until a task is in a state; return its row."""
        wait_until(
            lambda: self.deployment.state(task_id) == state,
            timeout=timeout,
            what=f"{state}, not {self.deployment.state(task_id)}",
        )
        return self.deployment.row(task_id)

    def outcomes(self, task_id: TaskId) -> list[str | None]:
        """Return how each run of a task ended, in order."""
        rows = self.deployment.rows(
            "SELECT outcome FROM attempts WHERE task_id = :id ORDER BY epoch", id=task_id
        )
        return [row["outcome"] for row in rows]


@contextmanager
def shared_harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis, **changes: object
) -> Iterator[WorkerHarness]:
    """Give several tests a database and a publisher together; the settings may be changed."""
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(url, redis.url, **changes)
        publisher = Publisher(settings)
        try:
            yield WorkerHarness(deployment, settings, publisher, deployment.user())
        finally:
            publisher.close()
