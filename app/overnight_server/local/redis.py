"""An embedded Redis (or Valkey) on a loopback port, with a password and an append-only file."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis.exceptions import RedisError

from overnight_server.local.binaries import find_redis
from overnight_server.local.credentials import Credentials, write_private
from overnight_server.local.embedded import EmbeddedServer
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.ports import LOOPBACK, free_port
from overnight_server.wakeups.redis_client import fail_fast_client


@dataclass(frozen=True)
class RedisServer:
    """The data directory, the port and the password of one Redis server."""

    data: Path
    port: int
    credentials: Credentials
    binary: Path

    @property
    def url(self) -> str:
        """The server's address, with the password."""
        return f"redis://:{self.credentials.password('redis')}@{LOOPBACK}:{self.port}/0"

    def initialise(self) -> None:
        """Write the configuration file; the password must not be among the arguments."""
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f"requirepass {self.credentials.password('redis')}",
            f"dir {_quoted(str(self.data))}",
            "appendonly yes",
            'save ""',
            "loglevel warning",
            # With any other policy Redis deletes keys when its memory is full, and so loses
            # messages of Celery.
            "maxmemory-policy noeviction",
        ]
        write_private(self._configuration, "\n".join(lines) + "\n")

    @property
    def _configuration(self) -> Path:
        return self.data / "redis.conf"

    def server(self) -> Program:
        """Return the program that runs the server in the foreground."""
        return Program([str(self.binary), str(self._configuration)], stop_signal=signal.SIGTERM)

    def is_ready(self) -> bool:
        """Return whether the server accepts requests now."""
        with fail_fast_client(self.url) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class EmbeddedRedis(EmbeddedServer):
    """A Redis in `directory` that does not outlive the process that started it."""

    def __init__(
        self, directory: Path, *, port: int | None = None, binary: Path | None = None
    ) -> None:
        super().__init__(directory, log=directory / "redis.log")
        self.server = RedisServer(
            data=directory / "redis",
            port=port or free_port(),
            credentials=Credentials(directory / "credentials.json"),
            binary=binary or find_redis(),
        )

    @property
    def url(self) -> str:
        """The server's address, with the password."""
        return self.server.url

    def program(self) -> Program:
        """Return the program to run."""
        return self.server.server()

    def is_ready(self) -> bool:
        """Return whether the server accepts requests now."""
        return self.server.is_ready()

    def start(self) -> Self:
        """Write the configuration, start the server and wait until it is ready."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.server.initialise()
        super().start()
        return self

    def _crash(self, process: GuardedProgram) -> None:
        process.send_signal(signal.SIGKILL)
