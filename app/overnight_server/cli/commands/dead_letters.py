"""`overnight dead`: tasks that failed for good and wait for a person."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import options, output, short_ids
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight.models.admin import UserDeadLetter
    from overnight_server.domain.ids import TaskId
    from overnight_server.store.db import Db

app = typer.Typer(help="Look at tasks that failed for good, and resolve them.")

HEADERS = ("ID", "DIED", "USER", "TYPE", "ATTEMPTS", "POISON", "RESOLVED", "TITLE", "ERROR")
# Ids made close together begin alike; this many are looked through for a short one.
LOOKED_THROUGH = 1000
Note = Annotated[str, typer.Option(help="Why; kept with the dead letter.")]


@app.command("list")
def list_(
    *,
    resolved: Annotated[
        bool, typer.Option("--all", help="Also those that are resolved already.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.Json = False,
) -> None:
    """List the dead letters, newest first."""
    from overnight_server.insight.dead_letters import list_dead_letters

    with database.opened() as db:
        letters = list_dead_letters(db, resolved=resolved, limit=limit)
    if as_json:
        output.document([letter.model_dump() for letter in letters])
    else:
        output.table(HEADERS, [_row(letter) for letter in letters], empty="No dead letters.")


@app.command()
def show(task: options.TaskRef, *, as_json: options.Json = False) -> None:
    """Show one dead letter with every failed run."""
    from overnight_server.insight.dead_letters import get_dead_letter

    with database.opened() as db:
        letter = get_dead_letter(db, _resolve(db, task))
    if as_json:
        output.document(letter.model_dump())
    else:
        output.record(letter.model_dump())


@app.command()
def retry(task: options.TaskRef, *, note: Note = "", as_json: options.Json = False) -> None:
    """Give a dead task, and what waited for it, another chance; no cap on waiting work holds it."""
    from overnight_server.control.dead_letters import retry as revive

    with database.opened() as db:
        task_id = _resolve(db, task)
        revive(db, task_id, actor=database.operator(), note=note)
    _done(task_id, "retry", as_json=as_json)


@app.command()
def cancel(task: options.TaskRef, *, note: Note = "", as_json: options.Json = False) -> None:
    """Give a dead task up for good."""
    from overnight_server.control.dead_letters import discard

    with database.opened() as db:
        task_id = _resolve(db, task)
        discard(db, task_id, actor=database.operator(), note=note)
    _done(task_id, "cancel", as_json=as_json)


def _resolve(db: "Db", given: str) -> "TaskId":
    """Return the task a person means: a whole id, or what only one open dead letter is named."""
    from overnight_server.domain.ids import MalformedId, parse_task
    from overnight_server.insight.dead_letters import list_dead_letters

    if short_ids.is_whole(given):
        try:
            return parse_task(short_ids.whole(given))
        except MalformedId as error:
            raise Failure(str(error), code=Code.USAGE) from error
    open_ones = [letter.task_id for letter in list_dead_letters(db, limit=LOOKED_THROUGH)]
    return parse_task(short_ids.choose(given, open_ones, among="open dead letters"))


def _row(letter: "UserDeadLetter") -> tuple[object, ...]:
    return (
        letter.task_id,
        letter.dead_lettered_at,
        letter.user,
        letter.type,
        letter.attempts,
        letter.poison_pill,
        letter.resolution,
        letter.title,
        letter.error or letter.failure_reason,
    )


def _done(task_id: "TaskId", resolution: str, *, as_json: bool) -> None:
    from overnight_server.domain.ids import show_task

    if as_json:
        output.document({"task_id": show_task(task_id), "resolution": resolution})
    else:
        output.line(f"{show_task(task_id)} resolved: {resolution}")
