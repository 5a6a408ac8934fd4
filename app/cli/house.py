"""The operator's look at anybody's task, straight from the database of the house."""

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import database, references, users
from app.cli.failures import Code, Failure

if TYPE_CHECKING:
    from app.domain.ids import TaskId, UserId
    from app.store.db import Db
    from overnight.explain_models import Explanation
    from overnight.models import Forecast, Task

House = Annotated[
    bool,
    typer.Option("--house", help="Anybody's, read from the database; for operators."),
]


def get(given: str) -> "Task":
    """Return any user's task."""
    from app.insight.tasks import get_task
    from overnight.models import Task

    with database.opened() as db:
        return Task.model_validate(get_task(db, *_named(db, given)))


def explain(given: str) -> "Explanation":
    """Tell why any user's task is not running."""
    from app.gate.claim import Terms
    from app.insight.explain import explain as judge
    from overnight.explain_models import Explanation

    terms = Terms.of(database.settings())
    with database.opened() as db:
        return Explanation.model_validate(judge(db, *_named(db, given), terms))


def forecast(given: str) -> "Forecast":
    """Foretell any user's task."""
    from app.insight.forecast import forecast_task
    from app.insight.snapshot import Workers
    from overnight.models import Forecast

    workers = Workers.of(database.settings())
    with database.opened() as db:
        return Forecast.model_validate(forecast_task(db, *_named(db, given), workers))


def tasks_of(user: str, *, status: str | None, limit: int) -> "list[Task]":
    """Return a user's newest tasks."""
    from app.domain.lifecycle import ALIASES, State, Status, states_of
    from app.insight.tasks import list_tasks
    from overnight.models import Task

    try:
        states = None if status is None else states_of(status.lower())
    except ValueError as error:
        legal = ", ".join(sorted({*Status, *State, *ALIASES}))
        message = f"status: is no status of a task; legal: {legal}"
        raise Failure(message, code=Code.USAGE) from error
    with database.opened() as db:
        found = list_tasks(db, users.known(db, user), states=states, limit=limit)
    return [Task.model_validate(view) for view in found]


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
    from app.domain.ids import MalformedId, parse_task, show_task
    from app.insight.tasks import owner_of, recent_tasks

    if not references.is_whole(given):
        recent = [show_task(task) for task in recent_tasks(db, limit=references.RECENT)]
        given = references.choose(given, recent, among="recent tasks of the house")
    try:
        task_id = parse_task(references.whole(given))
    except MalformedId as error:
        raise Failure(str(error), code=Code.USAGE) from error
    return owner_of(db, task_id), task_id
