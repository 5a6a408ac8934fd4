"""The parts of a local stack: servers, processes, addresses, environments."""

import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overnight_server.local.binaries import find_postgres, find_redis
from overnight_server.local.guarded_program import Program
from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.postgres import API_LOGIN, SERVICE_LOGIN, Cluster
from overnight_server.local.probes import http_status, live_workers
from overnight_server.local.redis import RedisServer
from overnight_server.local.service_state import Service
from overnight_server.settings import Settings
from overnight_server.settings.process_secrets import own_environment
from overnight_server.store.db import Db, driver_url

HTTP_OK = 200
# The address to call for a server that listens on all addresses.
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - not bound


@dataclass(frozen=True)
class LocalStack:
    """Everything that `up` starts; `postgres` and `redis` are None if the settings name servers."""

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
        """Choose the embedded servers to run, the ports and the passwords."""
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
        """The address of the API."""
        return _address(self.settings.api_host, self.api_port)

    @property
    def flower_url(self) -> str:
        """The address of Flower."""
        return _address(self.settings.flower_host, self.flower_port)

    def connection(self, *, ready: bool) -> LocalConnection:
        """Return the addresses of all parts; `ready` says whether the processes are ready."""
        return LocalConnection(
            api_url=self.api_url,
            api_key_path=str(self.home.api_key_path),
            flower_url=self.flower_url,
            flower_login=self._flower_login(),
            # SQLAlchemy 2.1 would use psycopg 3, which is not installed, for `postgresql://`.
            database_url=driver_url(self.database_url),
            redis_url=self.redis_url,
            pid=os.getpid(),
            started_by="overnight up",
            ready=ready,
        )

    def _flower_login(self) -> str:
        """Return the user name and where the password is stored, never the password."""
        source = "OVERNIGHT_FLOWER_PASSWORD"
        if not self.settings.flower_password:
            source = str(self.home.credentials.path)
        return f"user {self.settings.flower_user}, password in {source}"

    def servers(self) -> list[Service]:
        """Return the embedded servers as services, after creating their data directories."""
        services = []
        if self.postgres:
            self.postgres.initialise()
            services.append(
                Service(
                    "postgres", self.postgres.server(), ready=self.postgres.is_ready, shown=False
                )
            )
        if self.redis:
            self.redis.initialise()
            services.append(
                Service("redis", self.redis.server(), ready=self.redis.is_ready, shown=False)
            )
        return services

    def migration(self) -> Service:
        """Return the command that updates the database schema; it runs once."""
        return self._process("migrate")

    def processes(self, db: Db) -> list[Service]:
        """Return the processes in the order of their start; they stop in reverse order."""
        api_ready = partial(_responds, f"{self.api_url}/ready", expected=HTTP_OK)
        worker_ready = partial(_has_worker, db, self.settings.worker_liveness)
        # Celery waits for its running tasks first, then for its own threads.
        celery_grace = self.settings.shutdown_grace + 10.0
        return [
            self._process("api", ready=api_ready),
            self._process("dispatcher"),
            self._process("maintenance", grace=celery_grace),
            self._process("worker", ready=worker_ready, grace=celery_grace),
            self._process("beat"),
            self._process("agent-driver"),
            self._process("notifier"),
            # Flower stores nothing, and does not end by itself while it waits for events.
            self._process(
                "flower", ready=partial(_responds, self.flower_url), grace=2.0, shown=False
            ),
        ]

    def _process(
        self,
        name: str,
        *,
        ready: partial[bool] | None = None,
        grace: float = 10.0,
        shown: bool = True,
    ) -> Service:
        servers = {"postgres": self.postgres, "redis": self.redis}
        return Service(
            name,
            Program(
                [sys.executable, "-P", "-m", "overnight_server.cli.main", name],
                env=self.environment(name),
                stop_signal=signal.SIGTERM,
                grace=grace,
                cwd=Path.cwd(),  # the user's handlers are imported from here
            ),
            ready=ready,
            depends_on=tuple(server for server, embedded in servers.items() if embedded),
            shown=shown,
        )

    def database_url_for(self, process: str) -> str:
        """Return the Postgres address of a process; the embedded server has a login per role."""
        if self.postgres is None or process == "migrate":
            return self.database_url
        return self.postgres.url(login=API_LOGIN if process == "api" else SERVICE_LOGIN)

    def _places(self) -> dict[str, str]:
        """Return where artifacts are kept and repositories may be, as settings of the processes.

        With a Postgres of its own the stack serves the user who started it: artifacts are in the
        home, and that user's repositories below the working directory are allowed.
        """
        places = {}
        allowed = [*self.settings.allowed_repositories, *self.home.repositories]
        if self.postgres:
            if not self.settings.artifact_store:
                places["OVERNIGHT_ARTIFACT_STORE"] = str(self.home.artifacts)
            if not self.settings.allowed_repositories:
                allowed.append(str(Path.cwd()))
        if allowed:
            places["OVERNIGHT_ALLOWED_REPOSITORIES"] = ",".join(dict.fromkeys(allowed))
        return places

    def environment(self, process: str) -> dict[str, str]:
        """Return the environment of a process: this one's, with the addresses of the stack.

        Secrets that the process does not need are left out.
        """
        addresses = {
            "OVERNIGHT_HOME": str(self.home.path),
            "OVERNIGHT_DATABASE_URL": self.database_url_for(process),
            "OVERNIGHT_REDIS_URL": self.redis_url,
            "OVERNIGHT_API_PORT": str(self.api_port),
            "OVERNIGHT_FLOWER_PORT": str(self.flower_port),
            "OVERNIGHT_FLOWER_USER": self.settings.flower_user,
            "OVERNIGHT_FLOWER_PASSWORD": self.flower_password,
            "PYTHONUNBUFFERED": "1",
            # A killed Celery leaves temporary directories behind; this keeps them in the home.
            "TMPDIR": str(self.home.run),
        }
        if process in {"agent-driver", "notifier"}:
            # Where agents report the ends of their runs, and where links in messages lead.
            addresses["OVERNIGHT_URL"] = self.api_url
        addresses |= self._places()
        # A secret may be set by value or by file, not by both; here it is set by value.
        files = {f"{name}_FILE" for name in addresses}
        inherited = {name: value for name, value in os.environ.items() if name not in files}
        return own_environment(process, inherited | addresses)


def _address(host: str, port: int) -> str:
    return f"http://{WILDCARD_HOSTS.get(host, host)}:{port}"


def _responds(url: str, expected: int | None = None) -> bool:
    status = http_status(url)
    return status is not None and expected in {None, status}


def _has_worker(db: Db, liveness: float) -> bool:
    return live_workers(db, liveness) > 0
