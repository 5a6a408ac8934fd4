"""An embedded Postgres on a loopback port: data directory, server, roles and database."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psycopg2
from psycopg2 import sql

from overnight_server.local.binaries import PostgresBinaries, find_postgres
from overnight_server.local.credentials import Credentials
from overnight_server.local.embedded import EmbeddedServer
from overnight_server.local.errors import DataNotOurs, DidNotStart
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.ports import LOOPBACK, free_port
from overnight_server.local.privileges import Identity, choose_identity, unprivileged_user

SUPERUSER = "postgres"
OWNER = "overnight"
DATABASE = "overnight"
#: The logins of the API and of the other processes; the migration creates them.
API_LOGIN = "overnight_api"
SERVICE_LOGIN = "overnight_service"
#: Postgres 18 takes about a second; a slow disk may take many.
INITDB_TIMEOUT = 300.0


@dataclass(frozen=True)
class Cluster:
    """The data directory, the port and the passwords of one Postgres server."""

    data: Path
    port: int
    credentials: Credentials
    binaries: PostgresBinaries
    fsync: bool = True
    options: Mapping[str, str] = field(default_factory=dict)

    def url(self, database: str = DATABASE, login: str = OWNER) -> str:
        """Return the address of a database for a login of the application, never a superuser."""
        return self._url(login, database)

    @property
    def superuser_url(self) -> str:
        """The superuser's address, used only to create roles and databases."""
        return self._url(SUPERUSER, "postgres")

    def _url(self, user: str, database: str) -> str:
        password = self.credentials.password(f"postgres.{user}")
        return f"postgresql://{user}:{password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def identity(self) -> Identity:
        """The user the server runs as."""
        return choose_identity([self.binaries.postgres, self.data])

    def initialise(self) -> None:
        """Create the data directory; raise DataNotOurs if one exists that Postgres cannot use."""
        if (self.data / "PG_VERSION").exists():
            self._check_existing_data()
            return
        # Created beside its final path and renamed when complete: an interrupted initdb leaves no
        # incomplete data directory that the next start would use.
        with tempfile.TemporaryDirectory(prefix=".initdb-", dir=self.data.parent) as scratch:
            Path(scratch).chmod(0o711)
            draft = Path(scratch, "data")
            draft.mkdir(mode=0o700)
            password_file = Path(scratch, "password")
            password_file.touch(mode=0o600)
            password_file.write_text(self.credentials.password(f"postgres.{SUPERUSER}") + "\n")
            self._change_owner(draft, password_file)
            self._run_initdb(draft, password_file, log=Path(scratch, "log"))
            draft.rename(self.data)

    def _change_owner(self, *paths: Path) -> None:
        if self.identity is not Identity.CURRENT_USER:
            user = unprivileged_user()
            for path in paths:
                os.chown(path, user.pw_uid, user.pw_gid)

    def _run_initdb(self, draft: Path, password_file: Path, *, log: Path) -> None:
        options = [
            f"--pgdata={draft}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
            *(() if self.fsync else ("--no-sync",)),
        ]
        program = self._program([str(self.binaries.initdb), *options])
        with log.open("wb") as output:
            initdb = GuardedProgram(program, output=output)
            code = initdb.wait(INITDB_TIMEOUT)
            initdb.stop()
        if code != 0:
            raise DidNotStart(f"initdb failed:\n{log.read_text(errors='replace')}")

    def _check_existing_data(self) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        version = self.binaries_version()
        if made_by != str(version):
            raise DataNotOurs(
                f"{self.data} was created by Postgres {made_by}, but {self.binaries.postgres} is "
                f"version {version}. Set OVERNIGHT_PG_BIN to a Postgres {made_by}."
            )
        expected = os.geteuid()
        if self.identity is not Identity.CURRENT_USER:
            expected = unprivileged_user().pw_uid
        owner = self.data.stat().st_uid
        if owner != expected:
            raise DataNotOurs(
                f"{self.data} belongs to user id {owner}, and Postgres would run as user id "
                f"{expected}. Run as the user that created it, or set OVERNIGHT_HOME to another "
                "directory."
            )

    def binaries_version(self) -> int:
        """Return the major version of the server program."""
        output = subprocess.run(
            [self.binaries.postgres, "--version"], check=True, capture_output=True, text=True
        ).stdout
        number = re.search(r"\d+", output)
        if not number:
            raise DataNotOurs(f"{self.binaries.postgres} --version printed no version: {output!r}")
        return int(number[0])

    def server(self) -> Program:
        """Return the server program: in the foreground, on loopback only, without a socket file."""
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self.options,
        }
        if not self.fsync:
            # Commits still reach the operating system, so a crash of the server alone loses none.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self._program([str(self.binaries.postgres), "-D", str(self.data), *options])

    def _program(self, argv: list[str]) -> Program:
        # SIGINT is the fast shutdown; SIGTERM would wait until every client has disconnected.
        return Program(
            argv,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            stop_signal=signal.SIGINT,
            grace=30.0,
            identity=self.identity,
        )

    def is_ready(self) -> bool:
        """Return whether the server accepts connections now."""
        try:
            psycopg2.connect(self.superuser_url, connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True

    def served_by(self) -> int | None:
        """Return the pid of the server that serves the data directory; None if none does."""
        try:
            return int((self.data / "postmaster.pid").read_text().partition("\n")[0])
        except (FileNotFoundError, ValueError):
            return None

    def prepare_owner(self) -> None:
        """Create the application's role and database in the running server, unless they exist."""
        connection = psycopg2.connect(self.superuser_url)
        connection.autocommit = True  # a database cannot be created inside a transaction
        try:
            with connection.cursor() as cursor:
                self._prepare_role(cursor)
                self._prepare_database(cursor)
        finally:
            connection.close()

    def prepare_logins(self) -> None:
        """Set the passwords of the logins that the migration created without one."""
        connection = psycopg2.connect(self.superuser_url)
        try:
            with connection, connection.cursor() as cursor:
                for login in (API_LOGIN, SERVICE_LOGIN):
                    password = sql.Literal(self.credentials.password(f"postgres.{login}"))
                    cursor.execute(
                        sql.SQL("ALTER ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD {}").format(
                            sql.Identifier(login), password
                        )
                    )
        finally:
            connection.close()

    def _prepare_role(self, cursor: psycopg2.extensions.cursor) -> None:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [OWNER])
        verb = sql.SQL("ALTER" if cursor.rowcount else "CREATE")
        # Row-level security does not apply to superusers, so the application must not be one.
        cursor.execute(
            sql.SQL("{} ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS CREATEROLE PASSWORD {}").format(
                verb,
                sql.Identifier(OWNER),
                sql.Literal(self.credentials.password(f"postgres.{OWNER}")),
            )
        )

    def _prepare_database(self, cursor: psycopg2.extensions.cursor) -> None:
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
        if not cursor.rowcount:
            cursor.execute(
                sql.SQL("CREATE DATABASE {} OWNER {}").format(
                    sql.Identifier(DATABASE), sql.Identifier(OWNER)
                )
            )


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres in `directory` that does not outlive the process that started it.

    `fsync=False` is faster; data survives a crash of the server, but not of the machine.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        fsync: bool = True,
        max_connections: int = 100,
        settings: Mapping[str, str] | None = None,
        binaries: PostgresBinaries | None = None,
    ) -> None:
        super().__init__(directory, log=directory / "postgres.log")
        self.cluster = Cluster(
            data=directory / "postgres",
            port=port or free_port(),
            credentials=Credentials(directory / "credentials.json"),
            binaries=binaries or find_postgres(),
            fsync=fsync,
            options={"max_connections": str(max_connections), **(settings or {})},
        )

    def url(self, database: str = DATABASE, login: str = OWNER) -> str:
        """Return the address of a database for one of the application's logins."""
        return self.cluster.url(database, login)

    @property
    def superuser_url(self) -> str:
        """The superuser's address, for creating databases and roles."""
        return self.cluster.superuser_url

    def program(self) -> Program:
        """Return the program to run."""
        return self.cluster.server()

    def is_ready(self) -> bool:
        """Return whether this server, and not another one on its port, accepts connections now."""
        return self.cluster.served_by() == self.pid and self.cluster.is_ready()

    def start(self) -> Self:
        """Start the server, and create the application's role and database in it."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.cluster.initialise()
        super().start()
        self.cluster.prepare_owner()
        return self

    def _crash(self, process: GuardedProgram) -> None:
        process.send_signal(signal.SIGQUIT)  # the immediate shutdown of Postgres
