"""The home: the directory with all files of a local stack.

home.json         the ports, chosen at the first start, the modules with handlers, and the
                  repositories that commands may work on
credentials.json  generated passwords, readable by the owner only
api.key           the local user's API key, readable by the owner only
connection.json   the addresses of the running stack; deleted when the stack stops
lock              locked while a stack runs in this home
postgres/ redis/  data
artifacts/        the content of large artifacts
restoring         while a restore puts data in their place: what it was doing
logs/             one file per service
run/              temporary files of the services
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overnight.client.discovery import find_home
from overnight_server.local.credentials import Credentials, write_private
from overnight_server.local.errors import PortTaken, RestoreInterrupted
from overnight_server.local.home_lock import holder_of
from overnight_server.local.ports import free_port, is_free

#: When root starts the stack, Postgres runs as another user, who must traverse the home.
MODE_FOR_ROOT, MODE = 0o711, 0o700


@dataclass(frozen=True)
class LocalConnection:
    """The addresses of a running stack, as written to connection.json.

    Until `ready`, only Postgres and Redis accept requests.
    """

    api_url: str
    api_key_path: str
    flower_url: str
    flower_login: str
    database_url: str
    redis_url: str
    pid: int
    started_by: str
    ready: bool


class Home:
    """The paths and small files of one home directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def find(cls, configured: Path, start: Path | None = None) -> "Home":
        """Find the home from any directory inside a project, as git finds its repository.

        A relative `configured` is searched for in `start` and all directories above it. If no such
        directory exists, the home is `configured` inside `start`, which `prepare` creates.
        """
        return cls(find_home(configured, start))

    def prepare(self) -> None:
        """Create the home and its directories, readable by the owner only."""
        mode = MODE_FOR_ROOT if os.geteuid() == 0 else MODE
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(mode)
        for directory in (self.artifacts, self.logs, self.run):
            directory.mkdir(exist_ok=True)
            directory.chmod(MODE)

    @property
    def artifacts(self) -> Path:
        """The directory of large artifacts."""
        return self.path / "artifacts"

    @property
    def logs(self) -> Path:
        """The directory of the log files, one per service."""
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """The directory for temporary files of the services."""
        return self.path / "run"

    @property
    def postgres(self) -> Path:
        """The data directory of Postgres."""
        return self.path / "postgres"

    @property
    def redis(self) -> Path:
        """The data directory of Redis."""
        return self.path / "redis"

    @property
    def restoring(self) -> Path:
        """The file that says that a restore is putting the data in their place."""
        return self.path / "restoring"

    def check_whole(self) -> None:
        """Raise RestoreInterrupted if a restore has put only a part of the data in their place.

        A start would make new, empty data for the missing part.
        """
        if self.restoring.exists():
            raise RestoreInterrupted(
                f"a restore was interrupted, and {self.path} may hold a part of the data only. "
                f"{self.restoring.read_text().strip()}"
            )

    @property
    def lock(self) -> Path:
        """The file that a running stack keeps locked."""
        return self.path / "lock"

    @property
    def api_key_path(self) -> Path:
        """The file with the local user's API key."""
        return self.path / "api.key"

    @property
    def credentials(self) -> Credentials:
        """The generated passwords."""
        return Credentials(self.path / "credentials.json")

    def choose_ports(self, configured: Mapping[str, int]) -> dict[str, int]:
        """Return one port per name, and remember it in home.json.

        The configured port if it is not 0, else the remembered one if it is free, else a new one.
        Raise PortTaken if a configured port is in use.
        """
        remembered = self._remembered("ports", {})
        chosen: dict[str, int] = {}
        for name, port in configured.items():
            if port and not is_free(port):
                raise PortTaken(
                    f"port {port} for {name} is in use. Set OVERNIGHT_{name.upper()}_PORT to "
                    "another port, or to 0 to use any free port."
                )
            chosen[name] = port or _free_port(remembered.get(name), frozenset(chosen.values()))
        kept = remembered | {name: chosen[name] for name, port in configured.items() if not port}
        self._remember(ports=kept)
        return chosen

    @property
    def handlers(self) -> tuple[str, ...]:
        """The modules with handlers that were chosen at an earlier start."""
        return tuple(self._remembered("handlers", ()))

    def remember_handlers(self, modules: Sequence[str]) -> None:
        """Store the modules with handlers, for the next start."""
        self._remember(handlers=list(modules))

    @property
    def repositories(self) -> tuple[str, ...]:
        """The paths that were allowed for the repositories of commands at an earlier start."""
        return tuple(self._remembered("repositories", ()))

    def remember_repositories(self, paths: Sequence[str]) -> None:
        """Store the allowed paths of repositories, for this start and later ones."""
        self._remember(repositories=list(paths))

    def _remembered(self, name: str, default: Any) -> Any:  # noqa: ANN401 - a value of JSON
        return _read_json(self.path / "home.json").get(name, default)

    def _remember(self, **values: object) -> None:
        content = _read_json(self.path / "home.json") | values
        write_private(self.path / "home.json", json.dumps(content, indent=2) + "\n")

    def api_key(self) -> str | None:
        """Return the local user's API key; None before the first start."""
        with contextlib.suppress(FileNotFoundError):
            return self.api_key_path.read_text().strip() or None
        return None

    def write_api_key(self, key: str) -> None:
        """Write the local user's API key to its file."""
        write_private(self.api_key_path, key + "\n")

    def connection(self) -> LocalConnection | None:
        """Return the addresses of the stack that runs in this home; None if none runs."""
        holder = holder_of(self.lock)
        written = _read_json(self._connection_path)
        # A killed stack leaves its file behind, so the file must name the lock's holder.
        if holder is None or written.get("pid") != holder.pid:
            return None
        return LocalConnection(**written)

    def publish(self, connection: LocalConnection) -> None:
        """Write the addresses to connection.json, where clients and commands find them."""
        write_private(self._connection_path, json.dumps(asdict(connection), indent=2) + "\n")

    def unpublish(self) -> None:
        """Delete connection.json if it exists."""
        self._connection_path.unlink(missing_ok=True)

    @property
    def _connection_path(self) -> Path:
        return self.path / "connection.json"


def _free_port(remembered: int | None, taken: frozenset[int]) -> int:
    if remembered and remembered not in taken and is_free(remembered):
        return remembered
    return free_port(taken=taken)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
