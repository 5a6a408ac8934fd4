"""Our own Redis (or Valkey) on a loopback port, with a password, keeping what it is told."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis.exceptions import RedisError

from overnight_server.local.binaries import find_redis
from overnight_server.local.credentials import Credentials, write_private
from overnight_server.local.embedded import Embedded
from overnight_server.local.guarded_program import Guarded, Program
from overnight_server.local.ports import LOOPBACK, free_port
from overnight_server.wakeups.redis_client import fail_fast_client


@dataclass(frozen=True)
class RedisServer:
    """One data directory of Redis, the port it serves and the password to it."""

    data: Path
    port: int
    credentials: Credentials
    binary: Path

    @property
    def url(self) -> str:
        """Address of the server, password included."""
        return f"redis://:{self.credentials.password('redis')}@{LOOPBACK}:{self.port}/0"

    def initialise(self) -> None:
        """Write the configuration, which holds the password and therefore is no argument."""
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f"requirepass {self.credentials.password('redis')}",
            f"dir {_quoted(str(self.data))}",
            "appendonly yes",
            'save ""',
            "loglevel warning",
            # A broker that silently drops keys loses messages; it has to refuse them instead.
            "maxmemory-policy noeviction",
        ]
        write_private(self._configuration, "\n".join(lines) + "\n")

    @property
    def _configuration(self) -> Path:
        return self.data / "redis.conf"

    def server(self) -> Program:
        """Say how to run the server in the foreground."""
        return Program([str(self.binary), str(self._configuration)], stop_signal=signal.SIGTERM)

    def is_ready(self) -> bool:
        """Say whether the server answers now."""
        with fail_fast_client(self.url) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class EmbeddedRedis(Embedded):
    """A Redis of our own in `directory`, started and stopped with its owner."""

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
        """Address of the server, password included."""
        return self.server.url

    def program(self) -> Program:
        """Say what to run."""
        return self.server.server()

    def is_ready(self) -> bool:
        """Say whether the server answers now."""
        return self.server.is_ready()

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.server.initialise()
        super().start()
        return self

    def _crash(self, process: Guarded) -> None:
        process.send_signal(signal.SIGKILL)
