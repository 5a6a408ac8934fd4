"""Examine every part of a deployment and say, for each that ails, what to do."""

import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from redis.exceptions import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from overnight_server.local.binaries import find_postgres, find_redis
from overnight_server.local.errors import LocalError
from overnight_server.local.home import Connection, Home
from overnight_server.local.probes import (
    draining_workers,
    http_status,
    live_workers,
    seconds_since_each_dispatcher,
    seconds_since_last_sweep,
)
from overnight_server.mask import mask_text
from overnight_server.settings import Settings
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, APP, DISPATCHER, DatabaseUnreachable, Db
from overnight_server.wakeups.redis_client import fail_fast_client

LEAST_PYTHON = (3, 11)
LEAST_POSTGRES = 16
LEAST_REDIS = (6, 2)
LEAST_SPACE = 1_000_000_000
#: What the dispatcher's connections are called.
PROCESS = "overnight-dispatcher"
#: A tick may be late by a few periods before we call beat dead.
TICKS_OF_GRACE = 6
HTTP_OK = 200
START_IT = "start the deployment with `overnight up`"

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One finding; `advice` says what to do and is empty when all is well."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Patient:
    """What is examined: a home, and the deployment that runs in it or the servers settings name."""

    settings: Settings
    home: Home
    connection: Connection | None

    @property
    def database_url(self) -> str:
        """The Postgres to examine."""
        url = self.settings.database_url or (self.connection and self.connection.database_url)
        return url or _fail("no server is running here", START_IT)

    @property
    def redis_url(self) -> str:
        """The Redis to examine."""
        url = self.settings.redis_url or (self.connection and self.connection.redis_url)
        return url or _fail("no server is running here", START_IT)

    def ask(self, question: Callable[[Db], T], *, role: str | None = DISPATCHER) -> T:
        """Put one question to Postgres in a role."""
        db = Db.connect(self.database_url, role=role, application_name="overnight-doctor")
        try:
            return question(db)
        finally:
            db.close()


class Ailing(Exception):
    """Something is wrong; `advice` says what to do."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


def _fail(detail: str, advice: str) -> str:
    raise Ailing(detail, advice)


def examine(settings: Settings) -> list[Check]:
    """Examine everything; never raises, and never shows a password."""
    home = Home.find(settings.home)
    patient = Patient(settings, home, home.connection())
    return [_finding(name, check, patient) for name, check in CHECKS.items()]


def _finding(name: str, check: Callable[[Patient], str], patient: Patient) -> Check:
    try:
        return Check(name, ok=True, detail=check(patient))
    except Ailing as ailing:
        return _ailment(name, ailing, ailing.advice)
    except LocalError as problem:
        return _ailment(name, problem, "see the message")
    except (DatabaseUnreachable, SQLAlchemyError) as problem:
        return _ailment(name, problem, "check OVERNIGHT_DATABASE_URL, or " + START_IT)
    except RedisError as problem:
        return _ailment(name, problem, "check OVERNIGHT_REDIS_URL, or " + START_IT)
    except OSError as problem:
        return _ailment(name, problem, f"make {patient.home.path} usable, or set OVERNIGHT_HOME")


def _ailment(name: str, problem: Exception, advice: str) -> Check:
    words = str(problem).strip() or type(problem).__name__
    return Check(name, ok=False, detail=mask_text(words.splitlines()[0]), advice=advice)


def _python(_: Patient) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        _fail(version, "use Python {}.{} or newer".format(*LEAST_PYTHON))
    return version


def _settings(patient: Patient) -> str:
    chosen = sorted(patient.settings.model_fields_set)
    return f"valid; set: {', '.join(chosen) or 'none'}"


def _home(patient: Patient) -> str:
    path = patient.home.path
    if not path.exists():
        _fail(f"{path} does not exist", START_IT)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        _fail(f"{path} is not writable", "run as its owner, or set OVERNIGHT_HOME")
    for inside in (path, *path.iterdir()):
        if inside.exists() and inside.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~0o011:
            _fail(f"others may look into {inside}", f"chmod go-rw {inside}")
    return str(path)


def _space(patient: Patient) -> str:
    path = patient.home.path
    free = shutil.disk_usage(path if path.exists() else path.anchor).free
    words = f"{free / 1e9:.1f} GB free"
    if free < LEAST_SPACE:
        _fail(words, "make room: Postgres stops writing when the disk is full")
    return words


def _postgres_programs(patient: Patient) -> str:
    if patient.settings.database_url:
        return "not needed, OVERNIGHT_DATABASE_URL is set"
    return str(find_postgres(patient.settings.pg_bin).directory)


def _redis_program(patient: Patient) -> str:
    if patient.settings.redis_url:
        return "not needed, OVERNIGHT_REDIS_URL is set"
    return str(find_redis(patient.settings.redis_bin))


def _postgres(patient: Patient) -> str:
    major = patient.ask(_major_version, role=None)
    if major < LEAST_POSTGRES:
        _fail(f"Postgres {major}", f"use Postgres {LEAST_POSTGRES} or newer")
    return f"Postgres {major}"


def _major_version(db: Db) -> int:
    with db.engine.connect() as connection:
        version = connection.dialect.server_version_info
    return int(version[0]) if version else 0


def _migrations(patient: Patient) -> str:
    current, head = migrate.current(patient.database_url), migrate.head()
    if current != head:
        _fail(f"at {current or 'nothing'}, this code knows {head}", "run `overnight migrate`")
    return f"at {head}"


def _roles(patient: Patient) -> str:
    """Say which roles this login may take: the owner's all, a process's own only what it needs."""
    taken = [role for role in (APP, ADMIN, DISPATCHER) if _can_be(patient, role)]
    if not taken:
        _fail("cannot work as any role", "run `overnight migrate` as the owner of the database")
    return ", ".join(taken)


def _can_be(patient: Patient, role: str) -> bool:
    try:
        patient.ask(lambda db: db.atomically(lambda tx: tx.scalar(select(func.now()))), role=role)
    except (DatabaseUnreachable, SQLAlchemyError):
        patient.ask(lambda db: db.engine.connect().close(), role=None)  # unreachable says so
        return False
    return True


def _redis(patient: Patient) -> str:
    with fail_fast_client(patient.redis_url) as client:
        facts = client.info("server")
        version = str(facts.get("valkey_version") or facts["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < LEAST_REDIS:
            _fail(f"version {version}", "use Redis {}.{} or newer".format(*LEAST_REDIS))
        policy = client.info("memory")["maxmemory_policy"]
    if policy != "noeviction":
        _fail(f"maxmemory-policy is {policy}", "set it to noeviction, or messages will vanish")
    return f"version {version}, {policy}"


def _api(patient: Patient) -> str:
    url = patient.settings.url or (patient.connection and patient.connection.api_url)
    if not url:
        return _fail("no API is running here", START_IT)
    status = http_status(f"{url}/ready")
    if status != HTTP_OK:
        _fail(
            f"{url}/ready answered {status or 'nothing'}", f"look into {patient.home.logs}/api.log"
        )
    return url


def _workers(patient: Patient) -> str:
    liveness = patient.settings.worker_liveness
    count = patient.ask(lambda db: live_workers(db, liveness))
    draining = patient.ask(lambda db: draining_workers(db, liveness))
    aside = f", {len(draining)} draining" if draining else ""
    if not count and draining:
        _fail(
            f"none takes on work{aside}",
            f"`overnight drain {draining[0]} --undo`, or start a worker with `overnight worker`",
        )
    if not count:
        _fail("none has been heard from", f"{START_IT}, or a worker with `overnight worker`")
    return f"{count} alive{aside}"


def _dispatcher(patient: Patient) -> str:
    """Say whether one is connected and speaks: it asks at every poll, whether there is work or not.

    Asked as whoever the login is: a role that is taken on sees less of other connections.
    """
    silent = patient.ask(lambda db: seconds_since_each_dispatcher(db, PROCESS), role=None)
    limit = TICKS_OF_GRACE * patient.settings.poll_interval
    if not silent:
        return _fail(
            "none is connected", f"{START_IT}, or a dispatcher with `overnight dispatcher`"
        )
    latest = silent[0]
    if latest is None:
        return "connected"
    if latest > limit:
        _fail(f"none has asked for {latest:.0f} s", "restart `overnight dispatcher`")
    return f"asked {max(latest, 0):.0f} s ago"


def _beat(patient: Patient) -> str:
    age = patient.ask(seconds_since_last_sweep)
    limit = TICKS_OF_GRACE * patient.settings.lease_check_interval
    if age is None:
        return _fail("no sweep has ever run", f"{START_IT}, or `overnight beat` and `maintenance`")
    if age > limit:
        _fail(f"the last sweep began {age:.0f} s ago", "restart `overnight beat` and `maintenance`")
    return f"last sweep {age:.0f} s ago"


def _flower(patient: Patient) -> str:
    if patient.connection is None:
        return _fail("no Flower is running here", START_IT)
    url = patient.connection.flower_url
    if http_status(url) is None:
        _fail(f"{url} does not answer", f"look into {patient.home.logs}/flower.log")
    return url


CHECKS: dict[str, Callable[[Patient], str]] = {
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
    "beat": _beat,
    "flower": _flower,
}
