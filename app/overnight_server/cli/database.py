"""Open the database for the few commands that work without an API server.

These are `migrate`, `sweep`, `drill`, the processes, and `--database` for the first users and keys.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overnight_server.cli import connection
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.cli.terminal.output import quoted

if TYPE_CHECKING:
    from overnight_server.domain.ids import UserId
    from overnight_server.settings import Settings
    from overnight_server.store.db import Db

ADVICE = "Start the local stack with `overnight up`, or set OVERNIGHT_DATABASE_URL."
NO_REDIS_ADVICE = "Start the local stack with `overnight up`, or set OVERNIGHT_REDIS_URL."
MISSING_TABLE = "42P01"
# Only this role may write users and keys.
ADMIN_ROLE = "overnight_admin"


def settings() -> "Settings":
    """Return the settings, completed with the servers of the running local stack.

    The addresses found are also written to the environment, for the process this one may become.
    """
    configured = connection.settings()
    running = connection.home(configured).connection()
    if running is None:
        return configured
    found = {}
    if configured.database_url is None:
        found["OVERNIGHT_DATABASE_URL"] = running.database_url
    if configured.redis_url is None:
        found["OVERNIGHT_REDIS_URL"] = running.redis_url
    os.environ.update(found)
    return connection.settings() if found else configured


def settings_with_database() -> "Settings":
    """Return the settings; raise CommandFailure if they name no database."""
    configured = settings()
    if configured.database_url is None:
        raise CommandFailure("No database is configured or running here.", hint=ADVICE)
    return configured


def settings_with_servers() -> "Settings":
    """Return the settings; raise CommandFailure if they name no database or no Redis."""
    settings_with_database()
    return settings_with_redis()


def settings_with_redis() -> "Settings":
    """Return the settings; raise CommandFailure if they name no Redis."""
    configured = settings()
    if configured.redis_url is None:
        raise CommandFailure("No Redis is configured or running here.", hint=NO_REDIS_ADVICE)
    return configured


def url() -> str:
    """Return the address of Postgres; raise CommandFailure if none is configured."""
    return str(settings_with_database().database_url)


def operator_actor() -> str:
    """Return the actor for the audit log: `human:` and the login name of the system's user.

    Without a login name the result is `human:operator`.
    """
    import getpass

    try:
        return f"human:{getpass.getuser()}"
    except (KeyError, OSError):
        return "human:operator"


@contextmanager
def opened(role: str = "overnight_dispatcher") -> Iterator["Db"]:
    """Open the database for one command, with the rights of the role.

    Raises CommandFailure if it cannot be used: unreachable, or with another schema.
    """
    from overnight_server.store.db import Db
    from overnight_server.store.migrate import check

    address = url()
    if not logging.getLogger().handlers:
        # A command prints its result; log lines are for the processes.
        logging.getLogger().addHandler(logging.NullHandler())
    with reported_failures():
        check(address)
        db = Db.connect(
            address,
            role=role,
            application_name="overnight-cli",
            pool_size=1,
            actor=operator_actor(),
        )
        try:
            yield db
        finally:
            db.close()


def user_id_of(db: "Db", name: str) -> "UserId":
    """Return the id of the user with this name; raise CommandFailure if there is none."""
    from overnight_server.insight.users import find_user

    user_id = find_user(db, name)
    if user_id is None:
        hint = f"Create the user with `overnight user add {quoted(name)} --database`."
        raise CommandFailure(f"There is no user {name!r}.", hint=hint)
    return user_id


@contextmanager
def reported_failures() -> Iterator[None]:
    """Turn errors of the database, and refusals of the service, into failures of the command."""
    from sqlalchemy.exc import OperationalError, ProgrammingError

    from overnight.errors import InvalidRequest, Refused
    from overnight_server.store.db import DatabaseUnreachable, sqlstate
    from overnight_server.store.migrate import UnsuitableDatabase
    from overnight_server.store.schema_fingerprint import SchemaMismatch

    try:
        yield
    except SchemaMismatch as error:
        raise CommandFailure(str(error), hint=error.advice) from error
    except UnsuitableDatabase as error:
        raise CommandFailure(str(error), hint=error.advice) from error
    except (DatabaseUnreachable, OperationalError) as error:
        raise CommandFailure(_first_line(error), hint=ADVICE) from error
    except ProgrammingError as error:
        if sqlstate(error) != MISSING_TABLE:
            raise
        raise CommandFailure(
            "The database has no tables yet.", hint="Run `overnight migrate`."
        ) from error
    except InvalidRequest as refusal:
        raise CommandFailure(refusal.message, code=Code.USAGE, error_code=refusal.code) from refusal
    except Refused as refusal:
        raise CommandFailure(refusal.message, error_code=refusal.code) from refusal


def _first_line(error: Exception) -> str:
    from overnight_server.mask import mask_text

    reason = str(getattr(error, "orig", None) or error).strip() or "the database does not respond"
    return mask_text(reason.splitlines()[0])
