"""The operator's look at anybody's task, straight from the database of the deployment."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import short_ids
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight.models.explain import Explanation
    from overnight.models.tasks import Forecast, Task
    from overnight_server.domain.ids import TaskId, UserId
    from overnight_server.store.db import Db

AllUsers = Annotated[
    bool,
    typer.Option("--all-users", help="Anybody's, read from the database; for operators."),
]


def get(given: str) -> "Task":
    """Return any user's task."""
    from overnight_server.insight.tasks import get_task

    with database.opened() as db:
        return get_task(db, *_named(db, given))


def explain(given: str) -> "Explanation":
    """Tell why any user's task is not running."""
    from overnight_server.explain.explain import explain as judge
    from overnight_server.gate.claim import ClaimSettings

    claim_settings = ClaimSettings.from_settings(database.settings())
    with database.opened() as db:
        return judge(db, *_named(db, given), claim_settings)


def forecast(given: str) -> "Forecast":
    """Foretell any user's task."""
    from overnight_server.forecast.forecast import forecast_task
    from overnight_server.gate.claim import ClaimSettings

    claim_settings = ClaimSettings.from_settings(database.settings())
    with database.opened() as db:
        return forecast_task(db, *_named(db, given), claim_settings)


def tasks_of(user: str, *, status: str | None, limit: int) -> "list[Task]":
    """Return a user's newest tasks."""
    from overnight_server.domain.lifecycle import ALIASES, State, Status, states_of
    from overnight_server.insight.tasks import list_tasks

    try:
        states = None if status is None else states_of(status.lower())
    except ValueError as error:
        legal = ", ".join(sorted({*Status, *State, *ALIASES}))
        message = f"status: is no status of a task; legal: {legal}"
        raise Failure(message, code=Code.USAGE) from error
    with database.opened() as db:
        return list_tasks(db, users.known(db, user), states=states, limit=limit)


def refuse_connection(url: object, key_file: object) -> None:
    """Refuse to take a server's address for the database's."""
    if url is not None or key_file is not None:
        raise Failure(
            "an operator's look goes to the database and takes no --url and no --api-key-file",
            hint="OVERNIGHT_DATABASE_URL says where it is.",
            code=Code.USAGE,
        )


def _named(db: "Db", given: str) -> "tuple[UserId, TaskId]":
    """Return the task a person means and its owner: a whole id, or what only one recent has."""
    from overnight_server.domain.ids import MalformedId, parse_task, show_task
    from overnight_server.insight.tasks import owner_of, recent_tasks

    if not short_ids.is_whole(given):
        recent = [show_task(task) for task in recent_tasks(db, limit=short_ids.RECENT)]
        given = short_ids.choose(given, recent, among="recent tasks of the deployment")
    try:
        task_id = parse_task(short_ids.whole(given))
    except MalformedId as error:
        raise Failure(str(error), code=Code.USAGE) from error
    return owner_of(db, task_id), task_id
