"""`overnight inbox`: tasks that programs wrote to the inbox table in their own transactions."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output

if TYPE_CHECKING:
    from overnight.models.admin import InboxRow

app = typer.Typer(
    help="List and resolve tasks that programs wrote in their own transactions.",
    no_args_is_help=True,
)

HEADERS = ("ROW", "ARRIVED", "USER", "STATE", "TASK", "TITLE", "ERROR")
Row = Annotated[int, typer.Argument(metavar="ROW", min=1, help="Number of the row.")]


@app.command("list")
def list_(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="List rows that became tasks or were dropped too.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of rows to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the rows that wait or were refused, oldest first."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        rows = client.admin.inbox(resolved=everything, limit=limit)
    if as_json:
        output.document([task_output.as_document(row) for row in rows])
    else:
        cells = [_cells(row) for row in rows]
        optional = ("TITLE", "ARRIVED", "USER")
        output.table(HEADERS, cells, empty="The inbox is empty.", optional=optional)


@app.command()
def retry(
    row: Row,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Retry a row that was refused, after its cause was fixed."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.retry_inbox_row(row)
    _report(row, "retry", as_json=as_json)


@app.command()
def drop(
    row: Row,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Drop a row; it stays on record and never becomes a task."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.drop_inbox_row(row)
    _report(row, "drop", as_json=as_json)


def _cells(row: "InboxRow") -> tuple[object, ...]:
    state = row.outcome or (f"held by {row.held_by}" if row.held_by else "waiting")
    task = row.task_id and output.Id(row.task_id)
    return (row.id, row.arrived_at, row.user, state, task, row.title, row.error)


def _report(row: int, resolution: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"row": row, "resolution": resolution})
    else:
        output.line(f"Row {row} {'will be retried' if resolution == 'retry' else 'was dropped'}.")
