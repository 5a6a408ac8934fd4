"""What one deployment consists of: its servers, its processes, their addresses and environment."""

import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overnight_server.local.binaries import find_postgres, find_redis
from overnight_server.local.guarded_program import Program
from overnight_server.local.home import Connection, Home
from overnight_server.local.postgres import API_LOGIN, SERVICE_LOGIN, Cluster
from overnight_server.local.probes import http_status, live_workers
from overnight_server.local.redis import RedisServer
from overnight_server.local.service_state import Service
from overnight_server.settings import Settings
from overnight_server.store.db import Db

HTTP_OK = 200
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - read, not bound


@dataclass(frozen=True)
class LocalStack:
    """Everything that `up` starts, as data; a server that was configured is not among it."""

    settings: Settings
    home: Home
    postgres: Cluster | None
    redis: RedisServer | None
    database_url: str
    redis_url: str
    api_port: int
    flower_port: int
    flower_password: str

    @classmethod
    def plan(cls, settings: Settings, home: Home) -> "LocalStack":
        """Decide which servers are ours, on which ports everything listens, and who may come in."""
        ports = home.choose_ports(
            {
                "api": settings.api_port,
                "flower": settings.flower_port,
                **({} if settings.database_url else {"postgres": 0}),
                **({} if settings.redis_url else {"redis": 0}),
            }
        )
        postgres = redis = None
        database_url, redis_url = settings.database_url, settings.redis_url
        if not database_url:
            binaries = find_postgres(settings.pg_bin)
            postgres = Cluster(home.postgres, ports["postgres"], home.credentials, binaries)
            database_url = postgres.url()
        if not redis_url:
            binary = find_redis(settings.redis_bin)
            redis = RedisServer(home.redis, ports["redis"], home.credentials, binary)
            redis_url = redis.url
        return cls(
            settings=settings,
            home=home,
            postgres=postgres,
            redis=redis,
            database_url=database_url,
            redis_url=redis_url,
            api_port=ports["api"],
            flower_port=ports["flower"],
            flower_password=settings.flower_password or home.credentials.password("flower"),
        )

    @property
    def api_url(self) -> str:
        """Where the API answers."""
        return _address(self.settings.api_host, self.api_port)

    @property
    def flower_url(self) -> str:
        """Where Flower answers."""
        return _address(self.settings.flower_host, self.flower_port)

    def connection(self, *, ready: bool) -> Connection:
        """Say where everything can be reached, or will be."""
        return Connection(
            api_url=self.api_url,
            api_key_path=str(self.home.api_key_path),
            flower_url=self.flower_url,
            flower_login=self._flower_login(),
            database_url=self.database_url,
            redis_url=self.redis_url,
            pid=os.getpid(),
            started_by="overnight up",
            ready=ready,
        )

    def _flower_login(self) -> str:
        """Say where the password is, never what it is."""
        place = "OVERNIGHT_FLOWER_PASSWORD"
        if not self.settings.flower_password:
            place = str(self.home.credentials.path)
        return f"user {self.settings.flower_user}, password in {place}"

    def servers(self) -> list[Service]:
        """List the servers that are ours, their data laid out."""
        services = []
        if self.postgres:
            self.postgres.initialise()
            services.append(
                Service("postgres", self.postgres.server(), ready=self.postgres.is_ready)
            )
        if self.redis:
            self.redis.initialise()
            services.append(Service("redis", self.redis.server(), ready=self.redis.is_ready))
        return services

    def migration(self) -> Service:
        """Say how the schema is brought up to date."""
        return self._process("migrate", grace=10.0)

    def processes(self, db: Db) -> list[Service]:
        """List the processes in the order of their start; they stop the other way round."""
        api_ready = partial(_answers, f"{self.api_url}/ready", expected=HTTP_OK)
        worker_ready = partial(_has_worker, db, self.settings.worker_liveness)
        # Celery waits for its running tasks first, then for its own threads.
        patient = self.settings.shutdown_grace + 10.0
        return [
            self._process("api", ready=api_ready),
            self._process("dispatcher"),
            self._process("maintenance", grace=patient),
            self._process("worker", ready=worker_ready, grace=patient),
            self._process("beat"),
            # Flower keeps nothing, and does not end by itself while it waits for events.
            self._process("flower", ready=partial(_answers, self.flower_url), grace=2.0),
        ]

    def _process(
        self, name: str, *, ready: partial[bool] | None = None, grace: float = 10.0
    ) -> Service:
        ours = (("postgres", self.postgres), ("redis", self.redis))
        return Service(
            name,
            Program(
                [sys.executable, "-P", "-m", "overnight_server.cli.main", name],
                env=self.environment(name),
                stop_signal=signal.SIGTERM,
                grace=grace,
                cwd=Path.cwd(),  # where a user's own handlers are found
            ),
            ready=ready,
            depends_on=tuple(server for server, own in ours if own),
        )

    def database_url_for(self, process: str) -> str:
        """Say where a process finds Postgres; in one of ours each kind has a login of its own."""
        if self.postgres is None or process == "migrate":
            return self.database_url
        return self.postgres.url(login=API_LOGIN if process == "api" else SERVICE_LOGIN)

    def environment(self, process: str) -> dict[str, str]:
        """Say what a process of this deployment must know to find the others."""
        ours = {
            "OVERNIGHT_HOME": str(self.home.path),
            "OVERNIGHT_DATABASE_URL": self.database_url_for(process),
            "OVERNIGHT_REDIS_URL": self.redis_url,
            "OVERNIGHT_API_PORT": str(self.api_port),
            "OVERNIGHT_FLOWER_PORT": str(self.flower_port),
            "OVERNIGHT_FLOWER_USER": self.settings.flower_user,
            "OVERNIGHT_FLOWER_PASSWORD": self.flower_password,
            "PYTHONUNBUFFERED": "1",
            # Celery leaves temporary directories behind when it is killed.
            "TMPDIR": str(self.home.run),
        }
        # A secret may be given by value or by file, not by both; here it is known by value.
        files = {f"{name}_FILE" for name in ours}
        return {name: value for name, value in os.environ.items() if name not in files} | ours


def _address(host: str, port: int) -> str:
    return f"http://{EVERYWHERE.get(host, host)}:{port}"


def _answers(url: str, expected: int | None = None) -> bool:
    status = http_status(url)
    return status is not None and expected in {None, status}


def _has_worker(db: Db, liveness: float) -> bool:
    return live_workers(db, liveness) > 0
