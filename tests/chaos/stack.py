"""A whole stack of real processes, each behind its own proxies, restarted when they end."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen
from uuid import uuid4

import psutil

from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Claim, Claimed
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.ports import LOOPBACK, free_port
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import Settings
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.chaos.handler_record import RECORD_PATH
from tests.chaos.proxy import FaultProxy, ProxyLink
from tests.chaos.tasks import SANDBOX_MARK
from tests.support.deployment import Deployment
from tests.support.servers import postgres_server, redis_server
from tests.support.wait import wait_until
from tests.support.workers import SOURCES, environment, worker_settings

CLOCKS: Final[dict[str, object]] = {
    "lease_seconds": 3,
    "heartbeat_interval": 1,
    "claim_ttl": 3,
    # Shorter than the time in which a run loses its claim: as with the default settings, a worker
    # that was cut off until its runs gave up counts as absent.
    "worker_liveness": 1.5,
    "lease_check_interval": 0.5,
    "timeout_check_interval": 1,
    "promote_interval": 0.5,
    "trigger_interval": 0.5,
    "schedule_interval": 0.5,
    "bulk_interval": 0.5,
    "dispatch_tick_interval": 2,
    "cycle_check_interval": 2,
    "audit_interval": 5,
    "poll_interval": 1,
    "cancel_grace": 1,
    "shutdown_grace": 1,
    "retry_initial_delay_sec": 0.2,
    "retry_max_delay_sec": 2,
    "concurrency": 6,
    "max_tasks_per_child": 100,
    "handlers": "tests.chaos.handlers",
}
HTTP_AGENTS: Final = "http-agents"
# The most producers that have an HTTP agent.
AGENT_PORTS: Final = 8
# Every kind of process, some of them twice, a second pool, and the HTTP agents.
SERVICES: Final[dict[str, dict[str, object]]] = {
    "api": {},
    "dispatcher": {},
    "dispatcher-2": {},
    "maintenance": {},
    "beat": {},
    "beat-2": {},
    "worker": {},
    "worker-2": {},
    "worker-3": {"pool": "night", "concurrency": 2},
    "agent-driver": {"completion_poll_interval": 0.5, "dispatch_timeout": 2},
    HTTP_AGENTS: {},
}
MARK: Final = "CHAOS_RUN"
PREFIX: Final = "chaos:"
RESTART_PAUSE_SECONDS: Final = 0.3
CHECK_SECONDS: Final = 0.1


@dataclass
class Service:
    """One named process of the stack, started again whenever it ends."""

    name: str
    settings: Settings
    postgres: ProxyLink
    redis: ProxyLink
    process: GuardedProgram | None = None
    ended_at: float = 0.0
    starts: int = 0

    @property
    def command(self) -> str:
        """The command that it runs: `worker` for `worker-2`."""
        return command_of(self.name)


def command_of(service: str) -> str:
    """Return the command of a service, which is its name without a number."""
    return re.sub(r"-\d+$", "", service)


@dataclass(frozen=True)
class Exit:
    """One end of a service's process, and the signal that was sent to it before, if any."""

    service: str
    code: int
    sent: signal.Signals | None


@dataclass(frozen=True)
class Shutdown:
    """Exit codes after SIGTERM (None: still running), and the processes that were left."""

    codes: dict[str, int | None]
    survivors: list[str]


@dataclass
class ChaosStack:
    """Servers, links and services; `start_restarter` starts ended services again."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    proxy: FaultProxy
    deployment: Deployment
    producer: Db
    producer_link: ProxyLink
    logs: Path
    services: dict[str, Service]
    direct: Settings
    run_id: str
    agent_ports: Sequence[int] = field(
        default_factory=lambda: [free_port() for _ in range(AGENT_PORTS)]
    )
    faults: dict[str, str] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)
    exits: list["Exit"] = field(default_factory=list)
    _expected: dict[int, signal.Signals] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stop_event: threading.Event = field(default_factory=threading.Event)
    _restarter: threading.Thread | None = None

    @property
    def handler_record(self) -> Path:
        """The path of the record that the handlers write."""
        return self.logs / "handler_record.jsonl"

    @property
    def links(self) -> list[ProxyLink]:
        """The links of all services and of the producer."""
        own = [
            link for service in self.services.values() for link in (service.postgres, service.redis)
        ]
        return [*own, self.producer_link]

    @property
    def api_url(self) -> str:
        """The base URL of the API."""
        return f"http://{LOOPBACK}:{self.services['api'].settings.api_port}"

    def start(self, *names: str) -> None:
        """Fill services; without names, all that are free."""
        with self._lock:
            for name in names or self.services:
                if self.services[name].process is None:
                    self._start(self.services[name])

    def ready(self, timeout: float = 60) -> None:
        """Wait until the API answers and every worker has joined."""
        if self.services["api"].process is not None:
            wait_until(self._api_answers, what="the API to answer", timeout=timeout)
        workers = [service for service in self.services.values() if service.command == "worker"]
        needed = sum(service.process is not None for service in workers)
        wait_until(
            lambda: self.live_workers() >= needed, what=f"{needed} workers to join", timeout=timeout
        )

    def live_workers(self) -> int:
        """Count the workers with a recent heartbeat."""
        return int(
            self.deployment.one(
                "SELECT count(*) AS n FROM agents WHERE status = 'active'"
                " AND last_heartbeat_at > clock() - interval '2 seconds'"
            )["n"]
        )

    def publish(self, attempts: Sequence[Mapping[str, Any]]) -> int:
        """Publish the messages of claims again; return how many were sent."""
        claims = [
            Claimed(
                Claim(TaskId(row["task_id"]), row["epoch"], row["token"]),
                UserId(row["user_id"]),
                row["type"],
                1,
                1,
            )
            for row in attempts
        ]
        publisher = Publisher(self.direct)
        try:
            unsent = [
                one
                for pool in {row["pool"] for row in attempts}
                for one in publisher.send(
                    pool,
                    [
                        claim
                        for claim, row in zip(claims, attempts, strict=True)
                        if row["pool"] == pool
                    ],
                )
            ]
        finally:
            publisher.close()
        return len(claims) - len(unsent)

    def open_tasks(self) -> int:
        """Count the tasks that have not ended, and the fire times that will become tasks."""
        sql = (
            "SELECT (SELECT coalesce(sum(waiting + active), 0) FROM lanes)"
            " + (SELECT count(*) FROM schedule_fires WHERE status = 'waiting') AS n"
        )
        return int(self.deployment.one(sql)["n"])

    def start_restarter(self) -> None:
        """From now on, start services again when they end."""
        self._restarter = threading.Thread(
            target=self._restart_ended, name="restarter", daemon=True
        )
        self._restarter.start()

    def expect_end(self, pid: int, number: signal.Signals) -> None:
        """Record that a signal was sent to a process, which explains its end."""
        # After SIGKILL, an earlier SIGTERM does not matter.
        if self._expected.get(pid) is not signal.SIGKILL:
            self._expected[pid] = number

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a service (SIGKILL: to its children too); False if it does not run."""
        with self._lock:
            process = self.services[name].process
            if process is None or process.exit_code() is not None:
                return False
            self.expect_end(process.pid, number)
            process.send_signal(number)
            return True

    def pids(self, name: str) -> list[int]:
        """Return a service's process and everything below it, also in sandboxes; only ours.

        Process ids come round again: one that we remember may be somebody else by now.
        """
        process = self.services[name].process
        if process is None:
            return []
        try:
            main = psutil.Process(process.pid)
            family = [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        return [one.pid for one in family if self._belongs_to_run(one)]

    def orphans(self) -> list[str]:
        """Return the processes of this run that belong to no service."""
        with self._lock:
            known_pids = {pid for name in self.services for pid in self.pids(name)}
            return [
                command for pid, command in self._run_processes().items() if pid not in known_pids
            ]

    def shut_down(self, timeout: float = 30) -> Shutdown:
        """Send SIGTERM to every service, return how each ended, then kill what is left."""
        self._stop_restarter()
        for service in self.services.values():
            if service.process is not None:
                service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        codes: dict[str, int | None] = {}
        for service in self.services.values():
            if service.process is not None:
                codes[service.name] = service.process.wait(max(0.1, deadline - time.monotonic()))
        left = self.survivors()
        self.stop()
        return Shutdown(codes, left)

    def stop(self) -> None:
        """Kill all services."""
        self._stop_restarter()
        for service in self.services.values():
            if service.process is not None:
                service.process.send_signal(signal.SIGKILL)
        for service in self.services.values():
            if service.process is not None:
                service.process.stop()
                service.process = None

    def survivors(self) -> list[str]:
        """Return the processes of this run that are alive, in whatever session."""
        return list(self._run_processes().values())

    def log_text(self, name: str) -> str:
        """Return the log of a service."""
        place = self.logs / f"{name}.log"
        return place.read_text(errors="replace") if place.exists() else ""

    def log_size(self, name: str) -> int:
        """Return how many bytes the log of a service has."""
        return (self.logs / f"{name}.log").stat().st_size

    def _run_processes(self) -> dict[int, str]:
        processes = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._belongs_to_run(process):
                    processes[process.pid] = f"{process.pid} {' '.join(process.cmdline())[:80]}"
        return processes

    def _belongs_to_run(self, process: psutil.Process) -> bool:
        return is_in_sandbox(process) or self._is_marked(process)

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.run_id
        except psutil.Error:
            return False

    def _stop_restarter(self) -> None:
        self._stop_event.set()
        if self._restarter is not None:
            self._restarter.join()
            self._restarter = None
        self._stop_event.clear()

    def _restart_ended(self) -> None:
        while not self._stop_event.wait(CHECK_SECONDS):
            with self._lock:
                for service in self.services.values():
                    self._restart_if_ended(service)

    def _restart_if_ended(self, service: Service) -> None:
        if service.process is None:
            if time.monotonic() - service.ended_at >= RESTART_PAUSE_SECONDS:
                self._start(service)
                self.restarts[service.command] += 1
            return
        code = service.process.exit_code()
        if code is not None:
            self.exits.append(
                Exit(service.name, code, self._expected.pop(service.process.pid, None))
            )
            service.process.close()
            service.process, service.ended_at = None, time.monotonic()

    def _start(self, service: Service) -> None:
        marks = {MARK: self.run_id, RECORD_PATH: str(self.handler_record), "PYTHONPATH": SOURCES}
        armed = self.faults.get(service.name)
        if armed is not None:
            marks["OVERNIGHT_FAULT"] = armed
        with (self.logs / f"{service.name}.log").open("ab") as output:
            service.process = GuardedProgram(
                Program(
                    self._argv(service),
                    env=environment(service.settings) | marks,
                    cwd=self.logs,
                ),
                output=output,
            )
        service.starts += 1

    def _argv(self, service: Service) -> list[str]:
        if service.name == HTTP_AGENTS:
            ports = [str(port) for port in self.agent_ports]
            return [sys.executable, "-m", "tests.chaos.agent_process", *ports]
        return [sys.executable, "-m", "overnight_server.cli.main", service.command]

    def _api_answers(self) -> bool:
        try:
            with urlopen(f"{self.api_url}/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def chaos_stack(
    logs: Path, *, services: dict[str, dict[str, object]] = SERVICES, **clocks: object
) -> Iterator[ChaosStack]:
    """Start Postgres, Redis and proxies, and migrate the database; no service runs yet."""
    with ExitStack() as contexts:
        postgres = contexts.enter_context(postgres_server())
        redis = contexts.enter_context(redis_server())
        proxy = contexts.enter_context(FaultProxy())
        migrate.upgrade(postgres.url())
        roles = [
            contexts.enter_context(_connected(postgres.url(), role))
            for role in ("overnight_owner", DISPATCHER, ADMIN)
        ]
        producer_link = proxy.link(postgres.cluster.port)
        producer = contexts.enter_context(
            _connected(through(postgres.url(), producer_link), ADMIN, "chaos-producer")
        )
        made = ChaosStack(
            postgres,
            redis,
            proxy,
            Deployment(*roles),
            producer,
            producer_link,
            logs,
            _services(postgres, redis, proxy, services, clocks),
            worker_settings(postgres.url(), redis.url, redis_key_prefix=PREFIX),
            run_id=uuid4().hex,
        )
        contexts.callback(made.stop)
        yield made
        for server in (postgres, redis):
            shutil.copy(server.log, logs)


def _services(
    postgres: EmbeddedPostgres,
    redis: EmbeddedRedis,
    proxy: FaultProxy,
    services: dict[str, dict[str, object]],
    clocks: dict[str, object],
) -> dict[str, Service]:
    shared = {**CLOCKS, **clocks, "api_port": free_port(), "redis_key_prefix": PREFIX}
    made = {}
    for name, own in services.items():
        to_postgres, to_redis = proxy.link(postgres.cluster.port), proxy.link(redis.server.port)
        settings = worker_settings(
            through(postgres.url(), to_postgres),
            through(redis.url, to_redis),
            **{**shared, **own},
        )
        made[name] = Service(name, settings, to_postgres, to_redis)
    return made


def through(url: str, link: ProxyLink) -> str:
    """Return the URL with the host and port of the link."""
    parts = urlsplit(url)
    user, _, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}@{LOOPBACK}:{link.port}"))


@contextmanager
def _connected(url: str, role: str, name: str = "chaos") -> Iterator[Db]:
    db = Db.connect(url, role=role, application_name=name)
    try:
        yield db
    finally:
        db.close()


def is_in_sandbox(process: psutil.Process) -> bool:
    """Return whether this is a process of a command; it has nothing of its worker's environment."""
    try:
        return SANDBOX_MARK in process.cmdline()
    except psutil.Error:
        return False


def suspend(pids: list[int]) -> None:
    """Stop processes with SIGSTOP, like a long pause of the machine."""
    _send_all(pids, signal.SIGSTOP)


def resume(pids: list[int]) -> None:
    """Resume stopped processes with SIGCONT."""
    _send_all(pids, signal.SIGCONT)


def _send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
