"""`overnight audit`: list who did what to which user or object."""

from datetime import datetime
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import arguments, options, output, task_output

app = typer.Typer(help="List what people did.", no_args_is_help=True)

HEADERS = ("AT", "ACTOR", "KEY", "VIA", "ACT", "USER", "TARGET", "DETAIL")
OPTIONAL = ("VIA", "KEY", "TARGET", "USER")
# A changed field has its old and its new value.
OLD_AND_NEW = 2


@app.callback()
def audit() -> None:
    """List what people did."""


@app.command("list")
def list_(
    *,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Only acts that concern this user.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="DURATION|INSTANT",
            help="Only acts at or after this instant, such as 8h (ago) or 2030-01-31T07:00Z.",
            parser=arguments.past_instant,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of acts to list.")
    ] = 100,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List acts on users, keys, pauses, budgets and tasks, newest first."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        entries = client.admin.audit(user=user, since=since, limit=limit)
    if as_json:
        output.document([task_output.as_document(entry) for entry in entries])
        return
    rows = [
        (
            entry.at,
            _short_actor(entry.actor),
            entry.key_id,
            entry.via,
            entry.act,
            entry.user,
            output.Id(entry.target) if entry.target.startswith("task_") else entry.target,
            ", ".join(f"{field}={_change(value)}" for field, value in entry.detail.items()),
        )
        for entry in entries
    ]
    output.table(HEADERS, rows, empty="No acts are recorded.", optional=OPTIONAL)


def _short_actor(actor: str) -> str:
    """Shorten the id of a user on a terminal."""
    kind, _, name = actor.partition(":")
    return f"{kind}:{output.shown_id(name).lower()}" if kind == "user" else actor


def _change(value: object) -> str:
    if isinstance(value, list) and len(value) == OLD_AND_NEW:
        return f"{value[0]}→{value[1]}"
    return str(value)
