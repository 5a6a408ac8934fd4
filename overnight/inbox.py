"""Queue a task in your own database transaction: it exists if, and only if, you commit.

For programs whose tables stand in the same Postgres database as Overnight's. Nothing travels over
HTTP: one row is written by a function of the database, and becomes a task within about a second
after your commit. Roll back, and nothing was ever asked for.
"""

import hashlib
import json
import os
from typing import Any, Unpack

from overnight.client.tasks import task_create
from overnight.errors import InvalidRequest, NotConfigured, Unauthenticated
from overnight.models.tasks import TaskFields

SUBMIT = "SELECT public.overnight_inbox_submit({id}, {proof}, CAST({task} AS jsonb))"
KEY_PARTS = 5
# How the function of the database says that the key opens nothing.
NO_SUCH_KEY = "28000"


def submit(
    connection: Any,  # noqa: ANN401 - whichever library it is from
    title: str,
    *,
    api_key: str | None = None,
    **fields: Unpack[TaskFields],
) -> int:
    """Leave a task in the transaction of `connection`, and return the number of its row.

    `connection` is an SQLAlchemy Connection or Session, or anything with a DB-API `cursor()`, such
    as a connection of psycopg or psycopg2, or Django's. It is neither committed nor closed. The
    key, from OVERNIGHT_API_KEY if not given, says whose task it is; it is not sent itself. A wrong
    field is refused here, before anything is written. A key that opens nothing is refused by the
    database, and with it, as with every error of a statement, your transaction.
    """
    key_id, proof = _shown(api_key or os.environ.get("OVERNIGHT_API_KEY"))
    task = json.dumps(task_create(title, fields).model_dump(mode="json", exclude_unset=True))
    values = {"id": key_id, "proof": proof, "task": task}
    try:
        return _left(connection, values)
    except Exception as error:
        # Whichever library it is from has errors of its own; what Postgres said stands inside.
        if _sqlstate(error) != NO_SUCH_KEY:
            raise
        raise Unauthenticated("no valid API key with the scope tasks:write") from error


def _left(connection: Any, values: dict[str, str]) -> int:  # noqa: ANN401 - as above
    if hasattr(connection, "exec_driver_sql") or hasattr(connection, "get_bind"):
        from sqlalchemy import text  # noqa: PLC0415 - only whoever uses it has it

        asked = SUBMIT.format(id=":id", proof=":proof", task=":task")
        return int(connection.execute(text(asked), values).scalar_one())
    with connection.cursor() as cursor:
        cursor.execute(SUBMIT.format(id="%s", proof="%s", task="%s"), tuple(values.values()))
        [receipt] = cursor.fetchone()
        return int(receipt)


def _sqlstate(error: BaseException) -> str:
    """Return the code of what Postgres refused, as the library of the connection keeps it."""
    seen: BaseException | None = error
    while seen is not None:
        code = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        if code:
            return str(code)
        seen = getattr(seen, "orig", None) or seen.__cause__
    return ""


def _shown(key: str | None) -> tuple[str, str]:
    """Return what is shown of a key: its public part, and a proof that it is held."""
    if not key:
        raise NotConfigured("no key: give submit(api_key=…) or set OVERNIGHT_API_KEY")
    parts = key.split("_")
    if len(parts) != KEY_PARTS:
        raise InvalidRequest("api_key", "is not an Overnight API key")
    stored = hashlib.sha256(key.encode()).hexdigest()
    proof = hashlib.sha256(f"overnight inbox {stored}".encode()).hexdigest()
    return parts[2], proof
