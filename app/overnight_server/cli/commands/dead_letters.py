"""`overnight dead`: list and resolve dead letters, the tasks that failed for good."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, run_history, short_ids, task_output

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.admin import UserDeadLetter

app = typer.Typer(
    help="List and resolve dead letters: tasks that failed for good.", no_args_is_help=True
)

HEADERS = ("ID", "DIED", "USER", "TYPE", "ATTEMPTS", "POISON", "RESOLVED", "TITLE", "ERROR")
OPTIONAL = ("POISON", "ATTEMPTS", "TYPE", "RESOLVED", "TITLE", "USER")
# An abbreviated id is looked up among this many dead letters.
SEARCHED = 1000
Note = Annotated[str, typer.Option(help="Reason; kept with the dead letter.")]


@app.command("list")
def list_(
    *,
    resolved: Annotated[bool, typer.Option("--all", help="List resolved ones too.")] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest number of dead letters to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the dead letters of all users, newest first."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        letters = list(client.admin.dead_letters(resolved=resolved, limit=limit))
    if as_json:
        output.document([task_output.as_document(letter) for letter in letters])
    else:
        rows = [_row(letter) for letter in letters]
        output.table(HEADERS, rows, empty="No dead letters.", optional=OPTIONAL, wrap=False)


@app.command()
def show(
    task: options.TaskRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one dead letter with every run that spent an attempt. Needs an admin key."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        letter = client.admin.dead_letter(_resolve(client, task))
    if as_json:
        output.document(task_output.as_document(letter))
        return
    output.record(
        {
            "task": letter.task_id,
            "title": letter.title,
            "user": letter.user,
            "type": letter.type,
            "graph": letter.dag_id,
            "payload": letter.payload,
            "died": letter.dead_lettered_at,
            "attempts": letter.attempts,
            "failure": letter.failure_reason,
            "error": letter.error,
            "poison": "it seems to crash the processes that run it" if letter.poison_pill else None,
            "cost": task_output.cost_text(letter.total_cost_usd),
            "fingerprint": letter.fingerprint,
            "resolution": letter.resolution,
            "resolved": letter.resolved_at,
            "resolved by": letter.resolved_by,
            "note": letter.note,
        }
    )
    run_history.show(run_history.from_failures(letter.failure_history))


@app.command()
def retry(
    task: options.TaskRef,
    *,
    note: Note = "",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Run a dead-lettered task again, with the tasks that were cancelled because of it.

    The owner's limit on waiting tasks does not apply.
    """
    with connection.client(url, api_key_file, as_admin=True) as client:
        task_id = _resolve(client, task)
        client.admin.resolve_dead_letter(task_id, "retry", note=note)
    _report(task_id, "retry", as_json=as_json)


@app.command()
def cancel(
    task: options.TaskRef,
    *,
    note: Note = "",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Close a dead letter for good: the task is cancelled and does not run again."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        task_id = _resolve(client, task)
        client.admin.resolve_dead_letter(task_id, "cancel", note=note)
    _report(task_id, "cancel", as_json=as_json)


def _resolve(client: "Client", reference: str) -> str:
    """Return the id of the dead-lettered task that `reference` identifies."""
    if short_ids.is_whole(reference):
        return short_ids.whole(reference)
    open_letters = [letter.task_id for letter in client.admin.dead_letters(limit=SEARCHED)]
    return short_ids.choose(reference, open_letters, among="open dead letter")


def _row(letter: "UserDeadLetter") -> tuple[object, ...]:
    return (
        output.Id(letter.task_id),
        letter.dead_lettered_at,
        letter.user,
        letter.type,
        letter.attempts,
        letter.poison_pill or None,
        letter.resolution,
        letter.title,
        letter.error or letter.failure_reason,
    )


def _report(task_id: str, resolution: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"task_id": task_id, "resolution": resolution})
    elif resolution == "retry":
        output.line(f"{task_id} will run again.")
    else:
        output.line(f"{task_id} stays failed; its dead letter is closed.")
