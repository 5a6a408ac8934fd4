"""Submits through the inbox, in a transaction of the caller: a task exists only if it commits.

A canvas of several tasks becomes one row of the inbox: a task that spawns the others when it runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from uuid import uuid4

from overnight import inbox
from overnight.celery.canvas import GraphTask
from overnight.celery.task_fields import ID_TAG, SOURCE
from overnight.handlers.context import Context

# The type of the task that spawns a canvas.
SPAWN_TYPE = "overnight.celery.canvas"
SPAWN_ATTEMPTS = 10
_connection: ContextVar[Any] = ContextVar("overnight_celery_connection", default=None)


@contextmanager
def in_transaction(connection: Any) -> Iterator[None]:
    """Submit what the block sends in the open transaction of `connection`.

    It is an SQLAlchemy Connection or Session, or a connection of psycopg, psycopg2 or Django, to
    the database of Overnight; the block neither commits nor closes it.
    """
    token = _connection.set(connection)
    try:
        yield
    finally:
        _connection.reset(token)


def open_connection(find: Callable[[], Any] | None) -> Any:
    """Return the connection in whose transaction to submit; None to submit at once."""
    connection = _connection.get()
    return connection if connection is not None or find is None else find()


def write_task(connection: Any, key: str | None, fields: Mapping[str, Any]) -> str:
    """Write one task into the inbox; return the id by which its handle finds it."""
    values = dict(fields)
    chosen = values.pop("idempotency_key", None)
    task_id = str(uuid4()) if chosen is None else str(chosen).removeprefix("celery:")
    if chosen is None:
        values["tags"] = [*values["tags"], ID_TAG + task_id]
    inbox.submit(
        connection,
        values.pop("title"),
        api_key=key,
        idempotency_key=f"celery:{task_id}",
        **values,
    )
    return task_id


def write_graph(connection: Any, key: str | None, tasks: Sequence[GraphTask], title: str) -> str:
    """Write the tasks of a canvas into the inbox as one row; return the id of the row's task."""
    fields = {
        "title": title,
        "type": SPAWN_TYPE,
        "source": SOURCE,
        "max_attempts": SPAWN_ATTEMPTS,
        "tags": [],
        "payload": {"tasks": [_as_json(task) for task in tasks]},
    }
    return write_task(connection, key, fields)


def spawn_canvas(ctx: Context) -> dict[str, str]:
    """Spawn the tasks of a canvas that came through the inbox; return their ids by name.

    The names are keys: a repeated run finds the tasks that an earlier one has spawned.
    """
    ids: dict[str, str] = {}
    for task in ctx.payload["tasks"]:
        fields = dict(task["fields"])
        ids[task["name"]] = ctx.spawn(
            fields.pop("title"),
            fields.pop("type"),
            key=task["name"],
            depends_on=[ids[name] for name in task["after"]],
            **fields,
        )
    return ids


def _as_json(task: GraphTask) -> dict[str, Any]:
    fields = {**task.fields, "payload": task.payload()}
    fields.pop("idempotency_key", None)
    return {
        "name": task.name,
        "after": list(task.after),
        "fields": {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in fields.items()
        },
    }
