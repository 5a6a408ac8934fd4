"""Check every part of an installation; each failed check says what to do."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from redis.exceptions import RedisError
from sqlalchemy import func, select

from overnight_server.domain.reasons import join_names
from overnight_server.insight.audit_findings import count_findings
from overnight_server.insight.known_types import read_accepted_types, ready_types
from overnight_server.local.binaries import find_postgres, find_redis
from overnight_server.local.errors import LocalError
from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.probes import (
    count_channels,
    count_http_agents,
    deaf_workers,
    draining_workers,
    dropped_messages,
    http_status,
    live_workers,
    seconds_since_each_connection,
    seconds_since_last_sweep,
)
from overnight_server.mask import mask_text
from overnight_server.settings import Settings
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, APP, DATABASE_ERRORS, DISPATCHER, Db
from overnight_server.store.schema_fingerprint import SchemaMismatch, schema_fingerprint
from overnight_server.wakeups.redis_client import fail_fast_client

MIN_PYTHON = (3, 11)
MIN_REDIS = (6, 2)
MIN_SPACE = 1_000_000_000
#: The application names of the connections of dispatchers, agent drivers and notifiers.
DISPATCHER_NAME = "overnight-dispatcher"
DRIVER_NAME = "overnight-agent-driver"
NOTIFIER_NAME = "overnight-notifier"
#: How many intervals may pass without activity before a process counts as stopped.
MISSED_INTERVALS = 6
HTTP_OK = 200
START_ADVICE = "start everything with `overnight up`"

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """The result of one check; `advice` says what to do and is empty when `ok`."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class CheckContext:
    """What is checked: the settings, the home, and the stack that runs in the home, if any."""

    settings: Settings
    home: Home
    connection: LocalConnection | None

    @property
    def is_part(self) -> bool:
        """Whether this machine has only a part of a deployment, whose other parts run elsewhere.

        It has if the settings name a database or an API, and no local stack runs here. Parts that
        this machine does not know are then not checked.
        """
        settings = self.settings
        return self.connection is None and bool(settings.database_url or settings.url)

    @property
    def database_url(self) -> str:
        """The address of the Postgres to check; raises CheckFailed or NotChecked without one."""
        url = self.settings.database_url or (self.connection and self.connection.database_url)
        return url or self.unknown("no server is configured or running", "OVERNIGHT_DATABASE_URL")

    @property
    def redis_url(self) -> str:
        """The address of the Redis to check; raises CheckFailed or NotChecked without one."""
        url = self.settings.redis_url or (self.connection and self.connection.redis_url)
        return url or self.unknown("no server is configured or running", "OVERNIGHT_REDIS_URL")

    def unknown(self, detail: str, setting: str) -> str:
        """Raise NotChecked if the part may run elsewhere, CheckFailed otherwise."""
        if self.is_part:
            raise NotChecked(f"not checked: {setting} is not set on this machine")
        raise CheckFailed(detail, START_ADVICE)

    def query_as_process(self, function: Callable[[Db], T]) -> T:
        """Call a function in the role of the processes, or in that of the API's own login."""
        role = next((role for role in (DISPATCHER, ADMIN) if _can_use(self, role)), DISPATCHER)
        return self.query(function, role=role)

    def query(self, function: Callable[[Db], T], *, role: str | None) -> T:
        """Call a function with a database connection in this role, and return its result."""
        db = Db.connect(self.database_url, role=role, application_name="overnight-doctor")
        try:
            return function(db)
        finally:
            db.close()


class CheckFailed(Exception):
    """A check failed; `advice` says what to do."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


class NotChecked(Exception):
    """This machine does not know the part; the message says why it was not checked."""


def _fail(detail: str, advice: str) -> str:
    raise CheckFailed(detail, advice)


def run_checks(settings: Settings) -> list[Check]:
    """Run all checks and return their results; passwords are masked, no error is raised."""
    home = Home.find(settings.home)
    context = CheckContext(settings, home, home.connection())
    return [_run_check(name, check, context) for name, check in CHECKS.items()]


def _run_check(name: str, check: Callable[[CheckContext], str], context: CheckContext) -> Check:
    try:
        return Check(name, ok=True, detail=check(context))
    except NotChecked as reason:
        return Check(name, ok=True, detail=str(reason))
    except CheckFailed as failure:
        return _failed(name, failure, failure.advice)
    except LocalError as error:
        return _failed(name, error, "see what was found")
    except DATABASE_ERRORS as error:
        return _failed(name, error, "check OVERNIGHT_DATABASE_URL, or " + START_ADVICE)
    except RedisError as error:
        return _failed(name, error, "check OVERNIGHT_REDIS_URL, or " + START_ADVICE)
    except OSError as error:
        return _failed(name, error, f"make {context.home.path} usable, or set OVERNIGHT_HOME")


def _failed(name: str, error: Exception, advice: str) -> Check:
    message = str(error).strip() or type(error).__name__
    return Check(name, ok=False, detail=mask_text(message.splitlines()[0]), advice=advice)


def _python(_: CheckContext) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < MIN_PYTHON:
        _fail(version, "use Python {}.{} or newer".format(*MIN_PYTHON))
    return version


def _settings(context: CheckContext) -> str:
    chosen = sorted(context.settings.model_fields_set)
    return f"valid; set: {', '.join(chosen) or 'none'}"


def _home(context: CheckContext) -> str:
    path = context.home.path
    if not path.exists() and context.is_part:
        raise NotChecked("not needed, no local stack runs here")
    if not path.exists():
        _fail(f"{path} does not exist", START_ADVICE)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        _fail(f"{path} is not writable", "run as its owner, or set OVERNIGHT_HOME")
    for inside in (path, *path.iterdir()):
        if inside.exists() and inside.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~0o011:
            _fail(f"other users can read {inside}", f"chmod go-rw {inside}")
    return str(path)


def _space(context: CheckContext) -> str:
    path = context.home.path
    free = shutil.disk_usage(path if path.exists() else path.anchor).free
    detail = f"{free / 1e9:.1f} GB free"
    if free < MIN_SPACE:
        _fail(detail, "free some space: Postgres stops writing when the disk is full")
    return detail


def _postgres_programs(context: CheckContext) -> str:
    if context.settings.database_url:
        return "not needed, OVERNIGHT_DATABASE_URL is set"
    if context.is_part:
        return "not needed, no local stack runs here"
    return str(find_postgres(context.settings.pg_bin).directory)


def _redis_program(context: CheckContext) -> str:
    if context.settings.redis_url:
        return "not needed, OVERNIGHT_REDIS_URL is set"
    if context.is_part:
        return "not needed, no local stack runs here"
    return str(find_redis(context.settings.redis_bin))


def _postgres(context: CheckContext) -> str:
    major = context.query(_major_version, role=None)
    if major < migrate.MIN_POSTGRES:
        _fail(f"Postgres {major}", f"use Postgres {migrate.MIN_POSTGRES} or newer")
    return f"Postgres {major}"


def _major_version(db: Db) -> int:
    with db.engine.connect() as connection:
        version = connection.dialect.server_version_info
    return int(version[0]) if version else 0


def _migrations(context: CheckContext) -> str:
    current = migrate.current(context.database_url)
    if current is None:
        _fail("the database has no tables yet", "run `overnight migrate`")
    try:
        migrate.check(context.database_url)
    except SchemaMismatch as error:
        _fail(str(error), error.advice)
    except migrate.UnsuitableDatabase as error:
        _fail(str(error), error.advice)
    return f"at {current}, schema {schema_fingerprint()}"


def _roles(context: CheckContext) -> str:
    """Return the roles this login can use: the owner all of them, a process only those it needs."""
    usable = [role for role in (APP, ADMIN, DISPATCHER) if _can_use(context, role)]
    if not usable:
        _fail("this login can use no role", "run `overnight migrate` as the owner of the database")
    return ", ".join(usable)


def _can_use(context: CheckContext, role: str) -> bool:
    try:
        context.query(lambda db: db.atomically(lambda tx: tx.scalar(select(func.now()))), role=role)
    except DATABASE_ERRORS:
        context.query(
            lambda db: db.engine.connect().close(), role=None
        )  # raises if Postgres is unreachable
        return False
    return True


def _redis(context: CheckContext) -> str:
    with fail_fast_client(context.redis_url) as client:
        server = client.info("server")
        version = str(server.get("valkey_version") or server["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS:
            _fail(f"version {version}", "use Redis {}.{} or newer".format(*MIN_REDIS))
        policy = client.info("memory")["maxmemory_policy"]
    if policy != "noeviction":
        _fail(
            f"maxmemory-policy is {policy}",
            "set it to noeviction: with this policy a full Redis deletes messages",
        )
    return f"version {version}, {policy}"


def _api(context: CheckContext) -> str:
    url = context.settings.url or (context.connection and context.connection.api_url)
    if not url:
        return context.unknown("no API is configured or running", "OVERNIGHT_URL")
    status = http_status(f"{url}/ready")
    if status != HTTP_OK:
        log = f"{context.home.logs}/api.log" if context.connection else "the log of the API"
        _fail(f"{url}/ready returned {status or 'no response'}", f"see {log}")
    return url


def _workers(context: CheckContext) -> str:
    liveness = context.settings.worker_liveness
    count = context.query_as_process(lambda db: live_workers(db, liveness))
    draining = context.query_as_process(lambda db: draining_workers(db, liveness))
    suffix = f", {len(draining)} draining" if draining else ""
    deaf = context.query_as_process(lambda db: deaf_workers(db, liveness))
    if deaf:
        _fail(
            f"{join_names(deaf)} reads no messages from Redis",
            "it restarts when its runs have ended; if it becomes deaf again, see its log and Redis",
        )
    if not count and draining:
        _fail(
            f"no worker accepts tasks{suffix}",
            f"`overnight drain {draining[0]} --undo`, or start a worker with `overnight worker`",
        )
    if not count:
        _fail("no worker is live", f"{START_ADVICE}, or a worker with `overnight worker`")
    dropped = context.query_as_process(dropped_messages)
    if dropped:
        suffix += f", {dropped} messages dropped that the service did not send"
    return f"{count} live{suffix}"


def _handlers(context: CheckContext) -> str:
    """Check that live workers accept the types of the tasks that are ready."""
    liveness = context.settings.worker_liveness
    accepted = context.query_as_process(lambda db: read_accepted_types(db, liveness))
    waiting = context.query_as_process(ready_types)
    unhandled = {name: n for name, n in waiting.items() if accepted.warning(name) is not None}
    if unhandled:
        names = join_names([f"{name!r} ({n} waiting)" for name, n in unhandled.items()])
        _fail(
            f"no live worker has a handler for the type {names}",
            "start workers with the handlers (OVERNIGHT_HANDLERS), or cancel the tasks",
        )
    return "every waiting type has a handler"


def _sandbox(context: CheckContext) -> str:
    """Check by a trial that commands can run in a sandbox on this machine.

    The package of the workers is started as a program, because the server does not import it.
    """
    if sys.platform != "linux":
        raise NotChecked("sandboxes need Linux: tasks that run commands fail here")
    command = [sys.executable, "-P", "-m", "overnight_worker.sandbox"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        _fail("the trial failed", f"run `{' '.join(command)}` and see its message")
    probes = json.loads(answer.stdout)
    usable = [f"{probe['kind']} (memory: {probe['memory']})" for probe in probes if probe["usable"]]
    missing = [f"{probe['kind']}: {probe['reason']}" for probe in probes if not probe["usable"]]
    if usable:
        return "; ".join([", ".join(usable), *(f"not {text}" for text in missing)])
    if context.settings.sandbox == "permissive":
        return f"none, commands run without protection; {'; '.join(missing)}"
    remedies = "; or ".join(dict.fromkeys(probe["remedy"] for probe in probes))
    if context.is_part:
        return f"none, a worker here could run no commands; {'; '.join(missing)}; {remedies}"
    return _fail("; ".join(missing), remedies)


def _dispatcher(context: CheckContext) -> str:
    """Check that a dispatcher is connected and queries: it does at every poll, work or not.

    The login's own role is used, because other roles see less of other connections.
    """
    idle_seconds = context.query(
        lambda db: seconds_since_each_connection(db, DISPATCHER_NAME), role=None
    )
    limit = MISSED_INTERVALS * context.settings.poll_interval
    if not idle_seconds:
        return _fail(
            "no dispatcher is connected",
            f"{START_ADVICE}, or a dispatcher with `overnight dispatcher`",
        )
    latest = idle_seconds[0]
    if latest is None:
        return "connected"
    if latest > limit:
        _fail(f"no dispatcher has queried for {latest:.0f} s", "restart `overnight dispatcher`")
    return f"last query {max(latest, 0):.0f} s ago"


def _agent_driver(context: CheckContext) -> str:
    """Check that an agent driver is connected and queries, if there are HTTP agents to serve.

    It renews its hold on their addresses several times within the liveness of a worker.
    """
    agents = context.query_as_process(count_http_agents)
    if not agents:
        return "not needed, there are no HTTP agents"
    idle_seconds = context.query(
        lambda db: seconds_since_each_connection(db, DRIVER_NAME), role=None
    )
    if not idle_seconds:
        return _fail(
            f"no agent driver is connected, so {agents} HTTP agents get no tasks",
            f"{START_ADVICE}, or a driver with `overnight agent-driver`",
        )
    latest = idle_seconds[0] or 0.0
    if latest > context.settings.worker_liveness:
        _fail(f"no agent driver has queried for {latest:.0f} s", "restart `overnight agent-driver`")
    return f"connected, {agents} HTTP agents"


def _notifier(context: CheckContext) -> str:
    """Check that a notifier is connected and queries, if there are channels to send to."""
    channels = context.query_as_process(count_channels)
    if not channels:
        return "not needed, there are no notification channels"
    idle_seconds = context.query(
        lambda db: seconds_since_each_connection(db, NOTIFIER_NAME), role=None
    )
    if not idle_seconds:
        return _fail(
            f"no notifier is connected, so {channels} channels get no messages",
            f"{START_ADVICE}, or a notifier with `overnight notifier`",
        )
    latest = idle_seconds[0] or 0.0
    if latest > MISSED_INTERVALS * max(1, context.settings.notifier_poll_interval):
        _fail(f"no notifier has queried for {latest:.0f} s", "restart `overnight notifier`")
    return f"connected, {channels} channels"


def _beat(context: CheckContext) -> str:
    age = context.query_as_process(seconds_since_last_sweep)
    limit = MISSED_INTERVALS * context.settings.lease_check_interval
    if age is None:
        return _fail(
            "no sweep has ever run", f"{START_ADVICE}, or `overnight beat` and `maintenance`"
        )
    if age > limit:
        _fail(f"the last sweep began {age:.0f} s ago", "restart `overnight beat` and `maintenance`")
    return f"last sweep {age:.0f} s ago"


def _audit(context: CheckContext) -> str:
    """Check that the audit has no open finding; say when it last checked every row."""
    counts = context.query_as_process(count_findings)
    if counts.open:
        _fail(
            f"{counts.open} open findings: rows contradict each other",
            "see `overnight audit findings`",
        )
    repaired = f", {counts.repaired} repaired in the last day" if counts.repaired else ""
    if counts.seconds_since_round is None:
        return f"no open finding{repaired}; not everything was checked yet"
    return f"no open finding{repaired}; all rows checked {counts.seconds_since_round:.0f} s ago"


def _flower(context: CheckContext) -> str:
    if context.is_part:
        raise NotChecked("not checked: no local stack runs here")
    if context.connection is None:
        return _fail("no Flower is running", START_ADVICE)
    url = context.connection.flower_url
    if http_status(url) is None:
        _fail(f"{url} does not respond", f"see {context.home.logs}/flower.log")
    return url


CHECKS: dict[str, Callable[[CheckContext], str]] = {
    "python": _python,
    "settings": _settings,
    "home": _home,
    "disk space": _space,
    "postgres programs": _postgres_programs,
    "redis program": _redis_program,
    "postgres": _postgres,
    "migrations": _migrations,
    "roles": _roles,
    "redis": _redis,
    "api": _api,
    "dispatcher": _dispatcher,
    "workers": _workers,
    "handlers": _handlers,
    "sandbox": _sandbox,
    "agent driver": _agent_driver,
    "notifier": _notifier,
    "beat": _beat,
    "audit": _audit,
    "flower": _flower,
}
