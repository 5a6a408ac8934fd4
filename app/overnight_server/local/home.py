"""The one directory that holds everything of a deployment: data, passwords, ports, logs.

home.json         the ports, chosen once
credentials.json  generated passwords, for the owner's eyes only
api.key           the local user's API key, likewise
connection.json   where the running deployment can be reached; gone when it is stopped
lock              held while a deployment runs here
postgres/ redis/  data
logs/             one file per process
run/              temporary files of the processes
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overnight.client.discovery import find_home
from overnight_server.local.credentials import Credentials, write_private
from overnight_server.local.errors import PortTaken
from overnight_server.local.home_lock import holder_of
from overnight_server.local.ports import free_port, is_free

#: Root's Postgres runs as another user and must be able to walk through, but not to look around.
MODE_FOR_ROOT, MODE = 0o711, 0o700


@dataclass(frozen=True)
class Connection:
    """Where a running deployment can be reached, for the command line and for people.

    Until `ready`, only its servers answer.
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
    """The paths and small files of one home."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def find(cls, configured: Path, start: Path | None = None) -> "Home":
        """Find the home from anywhere inside a project, as git finds its repository.

        A relative `configured` is looked for in `start` and all directories above it; if it is
        nowhere, the home is the one that would be made in `start`.
        """
        return cls(find_home(configured, start))

    def prepare(self) -> None:
        """Make the home and its directories, closed to everybody else."""
        mode = MODE_FOR_ROOT if os.geteuid() == 0 else MODE
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(mode)
        for directory in (self.logs, self.run):
            directory.mkdir(exist_ok=True)
            directory.chmod(MODE)

    @property
    def logs(self) -> Path:
        """Where each process has its log."""
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """Where the processes put temporary files."""
        return self.path / "run"

    @property
    def postgres(self) -> Path:
        """The data of Postgres."""
        return self.path / "postgres"

    @property
    def redis(self) -> Path:
        """The data of Redis."""
        return self.path / "redis"

    @property
    def lock(self) -> Path:
        """The file that a running deployment holds locked."""
        return self.path / "lock"

    @property
    def api_key_path(self) -> Path:
        """The file with the local user's API key."""
        return self.path / "api.key"

    @property
    def credentials(self) -> Credentials:
        """The generated passwords."""
        return Credentials(self.path / "credentials.json")

    def choose_ports(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Settle one port per name: the wanted one if not 0, else last time's if free, else new."""
        known = _read_json(self.path / "home.json").get("ports", {})
        chosen: dict[str, int] = {}
        for name, port in wanted.items():
            if port and not is_free(port):
                raise PortTaken(
                    f"port {port} for {name} is in use; set OVERNIGHT_{name.upper()}_PORT to "
                    "another, or to 0 for a free one"
                )
            chosen[name] = port or _settle(known.get(name), frozenset(chosen.values()))
        kept = {**known, **{name: chosen[name] for name, port in wanted.items() if not port}}
        write_private(self.path / "home.json", json.dumps({"ports": kept}, indent=2) + "\n")
        return chosen

    def api_key(self) -> str | None:
        """Return the local user's API key, if there is one yet."""
        with contextlib.suppress(FileNotFoundError):
            return self.api_key_path.read_text().strip() or None
        return None

    def keep_api_key(self, key: str) -> None:
        """Keep the local user's API key."""
        write_private(self.api_key_path, key + "\n")

    def connection(self) -> Connection | None:
        """Say where the deployment of this home can be reached; None when it is not up."""
        holder = holder_of(self.lock)
        written = _read_json(self._connection_path)
        # A killed deployment leaves its file behind, so ask who holds the home now.
        if holder is None or written.get("pid") != holder.pid:
            return None
        return Connection(**written)

    def publish(self, connection: Connection) -> None:
        """Tell the command line where we are."""
        write_private(self._connection_path, json.dumps(asdict(connection), indent=2) + "\n")

    def retract(self) -> None:
        """Take back what `publish` said."""
        self._connection_path.unlink(missing_ok=True)

    @property
    def _connection_path(self) -> Path:
        return self.path / "connection.json"


def _settle(known: int | None, taken: frozenset[int]) -> int:
    if known and known not in taken and is_free(known):
        return known
    return free_port(taken=taken)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
