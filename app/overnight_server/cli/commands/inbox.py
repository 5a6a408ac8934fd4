"""`overnight inbox`: what programs left in their own transactions and intake could not take."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import options, output

if TYPE_CHECKING:
    from overnight.models.admin import InboxRow

app = typer.Typer(help="Look at tasks left in transactions, and resolve what was refused.")

HEADERS = ("ROW", "ARRIVED", "USER", "STANDS", "TITLE", "TASK", "ERROR")
Row = Annotated[int, typer.Argument(metavar="ROW", min=1, help="The row's number.")]


@app.command("list")
def list_(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that became tasks or were dropped.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.Json = False,
) -> None:
    """List what waits and what was refused, oldest first."""
    from overnight_server.insight.inbox import list_inbox

    with database.opened() as db:
        rows = list_inbox(db, resolved=everything, limit=limit)
    if as_json:
        output.document([row.model_dump() for row in rows])
    else:
        output.table(HEADERS, [_line(row) for row in rows], empty="The inbox is empty.")


@app.command()
def retry(row: Row, *, as_json: options.Json = False) -> None:
    """Let a refused row be tried again, after what was wrong is set right."""
    from overnight_server.control.inbox import retry_row

    with database.opened() as db:
        retry_row(db, row)
    _done(row, "retry", as_json=as_json)


@app.command()
def drop(row: Row, *, as_json: options.Json = False) -> None:
    """Give a row up; it stays on record."""
    from overnight_server.control.inbox import drop_row

    with database.opened() as db:
        drop_row(db, row, actor=database.operator())
    _done(row, "drop", as_json=as_json)


def _line(row: "InboxRow") -> tuple[object, ...]:
    stands = row.outcome or (f"held by {row.held_by}" if row.held_by else "waiting")
    return (row.id, row.arrived_at, row.user, stands, row.title, row.task_id, row.error)


def _done(row: int, act: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"row": row, "resolution": act})
    else:
        output.line(f"row {row} resolved: {act}")
