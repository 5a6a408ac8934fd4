"""Submit a task in your own database transaction: the task exists only if you commit.

For programs whose tables are in the same Postgres database as Overnight's. No HTTP is used: a
database function writes one row, which becomes a task within about a second after your commit. If
you roll back, nothing was submitted.
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
# The SQLSTATE with which the database function rejects a key.
INVALID_KEY = "28000"


def submit(
    connection: Any,  # noqa: ANN401 - of any database library
    title: str,
    *,
    api_key: str | None = None,
    **fields: Unpack[TaskFields],
) -> int:
    """Write a task into the inbox in the transaction of `connection`; return the row's number.

    `connection` is an SQLAlchemy Connection or Session, or any object with a DB-API `cursor()`,
    such as a connection of psycopg, psycopg2 or Django. It is neither committed nor closed. The
    API key (OVERNIGHT_API_KEY if not given) identifies the user; only a proof of it is sent.
    Raises InvalidRequest for a wrong field before anything is written. Raises Unauthenticated
    if the database rejects the key; as after every failed statement, the transaction must then
    be rolled back.
    """
    key_id, proof = _key_proof(api_key or os.environ.get("OVERNIGHT_API_KEY"))
    task = json.dumps(task_create(title, fields).model_dump(mode="json", exclude_unset=True))
    values = {"id": key_id, "proof": proof, "task": task}
    try:
        return _insert(connection, values)
    except Exception as error:
        # Each database library has its own exception; the SQLSTATE is inside.
        if _sqlstate(error) != INVALID_KEY:
            raise
        raise Unauthenticated("no valid API key with the scope tasks:write") from error


def _insert(connection: Any, values: dict[str, str]) -> int:  # noqa: ANN401 - as above
    if hasattr(connection, "exec_driver_sql") or hasattr(connection, "get_bind"):
        from sqlalchemy import text  # noqa: PLC0415 - only SQLAlchemy users have it installed

        statement = SUBMIT.format(id=":id", proof=":proof", task=":task")
        return int(connection.execute(text(statement), values).scalar_one())
    with connection.cursor() as cursor:
        cursor.execute(SUBMIT.format(id="%s", proof="%s", task="%s"), tuple(values.values()))
        [row_id] = cursor.fetchone()
        return int(row_id)


def _sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a database error, or an empty string."""
    cause: BaseException | None = error
    while cause is not None:
        code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if code:
            return str(code)
        cause = getattr(cause, "orig", None) or cause.__cause__
    return ""


def _key_proof(key: str | None) -> tuple[str, str]:
    """Return the public id of a key, and a proof that the caller has the key."""
    if not key:
        raise NotConfigured("no API key: pass submit(api_key=…) or set OVERNIGHT_API_KEY")
    parts = key.split("_")
    if len(parts) != KEY_PARTS:
        raise InvalidRequest("api_key", "is not an Overnight API key")
    stored = hashlib.sha256(key.encode()).hexdigest()
    proof = hashlib.sha256(f"overnight inbox {stored}".encode()).hexdigest()
    return parts[2], proof
