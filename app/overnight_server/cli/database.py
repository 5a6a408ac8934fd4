"""The operator's way to Postgres: the one the settings name, or the local deployment's own."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overnight_server.cli import connection
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight_server.settings import Settings
    from overnight_server.store.db import Db

ADVICE = "Start the local deployment with `overnight up`, or set OVERNIGHT_DATABASE_URL."
MISSING_TABLE = "42P01"
# Users and keys are an admin's business; everything else is the dispatcher's.
FRONT_DOOR = "overnight_admin"


def settings() -> "Settings":
    """Return the settings; where they name no servers, those of the running local deployment.

    What is found is also left in the environment, for the processes we become.
    """
    known = connection.settings()
    running = connection.home(known).connection()
    if running is None:
        return known
    found = {}
    if known.database_url is None:
        found["OVERNIGHT_DATABASE_URL"] = running.database_url
    if known.redis_url is None:
        found["OVERNIGHT_REDIS_URL"] = running.redis_url
    os.environ.update(found)
    return connection.settings() if found else known


def url() -> str:
    """Return the address of Postgres, or fail saying how to name one."""
    address = settings().database_url
    if address is None:
        raise Failure("no database is known here", hint=ADVICE)
    return address


def operator() -> str:
    """Return the name under which this person's acts are recorded."""
    import getpass

    try:
        return f"human:{getpass.getuser()}"
    except (KeyError, OSError):
        return "human:operator"


@contextmanager
def opened(role: str = "overnight_dispatcher") -> Iterator["Db"]:
    """Open the database for one operator's command, with no more rights than the role's."""
    from overnight_server.store.db import Db

    address = url()
    if not logging.getLogger().handlers:
        # A person reads what a command prints; what it would log is for processes.
        logging.getLogger().addHandler(logging.NullHandler())
    with reaching():
        db = Db.connect(
            address,
            role=role,
            application_name="overnight-cli",
            pool_size=1,
            actor=operator(),
        )
        try:
            yield db
        finally:
            db.close()


@contextmanager
def reaching() -> Iterator[None]:
    """Tell in one line what keeps a command from the database, and what the service refuses."""
    from sqlalchemy.exc import OperationalError, ProgrammingError

    from overnight.errors import InvalidRequest, Refused
    from overnight_server.store.db import DatabaseUnreachable, sqlstate
    from overnight_server.store.schema_fingerprint import ADVICE as SCHEMA_ADVICE
    from overnight_server.store.schema_fingerprint import SchemaMismatch

    try:
        yield
    except SchemaMismatch as error:
        raise Failure(str(error), hint=SCHEMA_ADVICE) from error
    except (DatabaseUnreachable, OperationalError) as error:
        raise Failure(_first_line(error), hint=ADVICE) from error
    except ProgrammingError as error:
        if sqlstate(error) != MISSING_TABLE:
            raise
        raise Failure("the database is not set up", hint="Run `overnight migrate`.") from error
    except InvalidRequest as refusal:
        raise Failure(refusal.message, code=Code.USAGE, word=refusal.code) from refusal
    except Refused as refusal:
        raise Failure(refusal.message, word=refusal.code) from refusal


def _first_line(error: Exception) -> str:
    from overnight_server.mask import mask_text

    reason = str(getattr(error, "orig", None) or error).strip() or "the database does not answer"
    return mask_text(reason.splitlines()[0])
