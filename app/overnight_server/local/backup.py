"""Save the data of a home to one file, and restore it.

A backup is a tar file with `manifest.json`, `database.dump` (of pg_dump) and `artifacts/`. It is
consistent also while the stack runs: pg_dump reads one snapshot, and artifacts are copied before
and after it, so the file has every content that the dump names. It contains the data of all users,
so only its owner can read it; the passwords and the API key of the home are not in it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from overnight_server.local.binaries import PostgresBinaries, find_postgres
from overnight_server.local.credentials import Credentials
from overnight_server.local.errors import CannotBackUp, CannotRestore, LocalError
from overnight_server.local.home import Home
from overnight_server.local.home_lock import hold, is_held
from overnight_server.local.ports import LOOPBACK
from overnight_server.local.postgres import DATABASE, SUPERUSER, EmbeddedPostgres
from overnight_server.maintenance.after_restore import Restored, after_restore
from overnight_server.settings import Settings
from overnight_server.store import migrate
from overnight_server.store.db import DISPATCHER, Db, driver_url
from overnight_server.store.schema_fingerprint import (
    fingerprints,
    schema_fingerprint,
    stored_schema,
)

FORMAT: Final = 1
MANIFEST, DUMP, ARTIFACTS = "manifest.json", "database.dump", "artifacts"


@dataclass(frozen=True)
class Manifest:
    """What a backup file is."""

    format: int
    overnight: str
    schema: str
    postgres: int
    made_at: str


@dataclass(frozen=True)
class BackUp:
    """A backup that was made."""

    path: Path
    size: int
    artifacts: int
    manifest: Manifest


@dataclass(frozen=True)
class RestoredHome:
    """A home that was restored; `replaced` has its former data."""

    manifest: Manifest
    restored: Restored
    replaced: Path | None


@dataclass(frozen=True)
class _Server:
    """A running embedded Postgres, and the programs that come with it."""

    binaries: PostgresBinaries
    port: int
    credentials: Credentials

    @property
    def url(self) -> str:
        """The address of the database for the superuser, who reads every row."""
        password = self.credentials.password(f"postgres.{SUPERUSER}")
        return f"postgresql://{SUPERUSER}:{password}@{LOOPBACK}:{self.port}/{DATABASE}"

    def run(self, name: str, arguments: Sequence[str]) -> None:
        """Run a program of Postgres; the password is not in its arguments."""
        program = self.binaries.directory / name
        if not program.exists():
            raise LocalError(f"{program} is missing. Set OVERNIGHT_PG_BIN to a whole Postgres.")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "PGHOST": LOOPBACK,
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": DATABASE,
            "PGPASSWORD": self.credentials.password(f"postgres.{SUPERUSER}"),
        }
        done = subprocess.run(
            [program, *arguments], env=environment, check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise LocalError(f"{name} failed: {done.stderr.strip()}")


def back_up(settings: Settings, target: Path) -> BackUp:
    """Save the home's data to a file that does not exist yet; the stack may run meanwhile.

    Raises CannotBackUp if there are no embedded data, the file exists, or it cannot be written.
    """
    home = Home.find(settings.home)
    if settings.database_url is not None:
        raise CannotBackUp(
            "OVERNIGHT_DATABASE_URL names a server of your own: save it with pg_dump or with your "
            "provider's tools (docs/operations/backup.md)."
        )
    if not (home.postgres / "PG_VERSION").exists():
        raise CannotBackUp(f"{home.path} has no data yet. Start it with `overnight up`.")
    home.check_whole()
    with _scratch_beside(target) as scratch:
        draft = scratch / "backup"
        with _running(settings, home) as server:
            manifest, artifacts = _write(server, home, draft, scratch / DUMP)
        size = draft.stat().st_size
        draft.replace(target)
    return BackUp(target, size, artifacts, manifest)


def restore(settings: Settings, source: Path, *, actor: str, replace: bool = False) -> RestoredHome:
    """Restore a backup into the home, which must not be running.

    The database is restored beside the present one and takes its place when it is complete; with
    `replace` the former data are kept in a directory of the home. Raises CannotRestore for a file
    of another schema, and for a home with data without `replace`; AlreadyRunning for a running
    stack.
    """
    home = Home.find(settings.home)
    manifest = _read_manifest(source)
    # A backup of an earlier version is migrated once it is restored.
    if manifest.schema not in fingerprints().values():
        raise CannotRestore(
            f"{source} was made by Overnight {manifest.overnight} with schema {manifest.schema}; "
            f"this version needs schema {schema_fingerprint()}. Restore it with the version that "
            "made it."
        )
    home.prepare()
    with hold(home.lock):
        has_data = (home.postgres / "PG_VERSION").exists() or any(home.artifacts.iterdir())
        if has_data and not replace:
            raise CannotRestore(
                f"{home.path} has data. Pass --replace to put the backup in their place, or set "
                "OVERNIGHT_HOME to another directory."
            )
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=home.path) as scratch:
            place = Path(scratch)
            place.chmod(0o711)
            with tarfile.open(source) as archive:
                archive.extractall(place, members=_expected(archive), filter="data")
            restored = _restore_database(settings, home, place, actor)
            replaced = _swap(home, place, keep=has_data or home.restoring.exists())
    return RestoredHome(manifest, restored, replaced)


@contextlib.contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    """Yield a new directory beside a file that is to be made; it is deleted afterwards."""
    try:
        exists = target.exists()
        scratch = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise CannotBackUp(
            f"{target} cannot be written: {error.strerror}: {target.parent}. Choose a directory "
            "that exists and that you may write to."
        ) from error
    with scratch as directory:
        if exists:
            raise CannotBackUp(f"{target} exists. Choose another name, or delete it.")
        yield Path(directory)


def _write(server: _Server, home: Home, draft: Path, dump: Path) -> tuple[Manifest, int]:
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            saved: set[Path] = set()
            _add_artifacts(archive, home, saved)
            manifest = _describe(server)
            arguments = ["--format=custom", f"--file={dump}"]
            server.run("pg_dump", arguments)
            _add_artifacts(archive, home, saved)
            archive.add(dump, DUMP)
            described = dump.with_name(MANIFEST)
            described.write_text(json.dumps(asdict(manifest), indent=2) + "\n")
            archive.add(described, MANIFEST)
        file.flush()
        os.fsync(file.fileno())
    return manifest, len(saved)


def _add_artifacts(archive: tarfile.TarFile, home: Home, saved: set[Path]) -> None:
    """Add the contents that are not saved yet; one that is deleted meanwhile is left out."""
    if not home.artifacts.is_dir():
        return
    for path in sorted(home.artifacts.rglob("*")):
        name = path.relative_to(home.artifacts)
        if path.is_file() and name not in saved:
            with contextlib.suppress(FileNotFoundError):
                archive.add(path, f"{ARTIFACTS}/{name}")
                saved.add(name)


def _describe(server: _Server) -> Manifest:
    engine = create_engine(driver_url(server.url))
    try:
        with engine.connect() as connection:
            schema = stored_schema(connection).fingerprint
            number = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    finally:
        engine.dispose()
    if schema is None:
        raise CannotBackUp("The database has no tables yet. Start it with `overnight up`.")
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Manifest(FORMAT, version("overnight"), schema, int(number) // 10_000, made_at)


def _read_manifest(source: Path) -> Manifest:
    try:
        with tarfile.open(source) as archive:
            file = archive.extractfile(MANIFEST)
            manifest = Manifest(**json.load(file)) if file else None
    except FileNotFoundError as error:
        raise CannotRestore(f"There is no file {source}.") from error
    except (tarfile.TarError, KeyError, ValueError, TypeError, OSError) as error:
        raise CannotRestore(f"{source} is no backup of Overnight, or it is damaged.") from error
    if manifest is None or manifest.format != FORMAT:
        raise CannotRestore(f"{source} has a format that this version cannot read.")
    return manifest


def _expected(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive.getmembers():
        if member.isfile() and (
            member.name in {MANIFEST, DUMP} or member.name.startswith(f"{ARTIFACTS}/")
        ):
            yield member


def _restore_database(settings: Settings, home: Home, place: Path, actor: str) -> Restored:
    """Restore the dump into a new cluster in `place`, with the passwords of the home."""
    for login in (SUPERUSER, "overnight", "overnight_api", "overnight_service"):
        home.credentials.password(f"postgres.{login}")
    shutil.copyfile(home.credentials.path, place / "credentials.json")
    binaries = find_postgres(settings.pg_bin)
    with EmbeddedPostgres(place, binaries=binaries) as postgres:
        server = _Server(binaries, postgres.cluster.port, home.credentials)
        migrate.create_roles(driver_url(postgres.url()))
        arguments = ["--exit-on-error", f"--dbname={DATABASE}", str(place / DUMP)]
        server.run("pg_restore", arguments)
        # Checks the schema and the rights, and takes rights on the database that a dump has not.
        migrate.upgrade(driver_url(postgres.url()))
        postgres.cluster.prepare_logins()
        db = Db.connect(
            driver_url(postgres.url()),
            role=DISPATCHER,
            application_name="overnight-cli",
            pool_size=1,
            actor=actor,
        )
        try:
            return after_restore(db, actor=actor)
        finally:
            db.close()


def _swap(home: Home, place: Path, *, keep: bool) -> Path | None:
    """Put the restored data into the home; return where its former data are.

    A process that is killed meanwhile leaves a file that keeps `up` from starting with a part.
    """
    former = home.path / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    (place / ARTIFACTS).mkdir(exist_ok=True)
    former.mkdir(mode=0o711)
    home.restoring.write_text(
        f"What was there before the restore is in {former}, as far as it was moved. Run `overnight "
        "restore FILE --replace` again.\n"
    )
    # Messages of Redis are hints about tasks that may not exist any more.
    for directory in (home.redis, home.artifacts, home.postgres):
        if directory.exists():
            directory.rename(former / directory.name)
    (place / ARTIFACTS).rename(home.artifacts)
    (place / "postgres").rename(home.postgres)
    home.restoring.unlink()
    if keep:
        return former
    shutil.rmtree(former)
    return None


@contextlib.contextmanager
def _running(settings: Settings, home: Home) -> Iterator[_Server]:
    """Yield the home's Postgres; it is started if the stack does not run."""
    binaries = find_postgres(settings.pg_bin)
    running = home.connection()
    if running is not None:
        yield _Server(binaries, make_url(running.database_url).port or 0, home.credentials)
        return
    if is_held(home.lock):
        raise CannotBackUp("The stack is starting or stopping. Try again in a moment.")
    with hold(home.lock), EmbeddedPostgres(home.path, binaries=binaries) as postgres:
        yield _Server(binaries, postgres.cluster.port, home.credentials)
