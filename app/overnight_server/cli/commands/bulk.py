"""`overnight bulk`: retry, cancel or reprioritise many tasks at once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import confirm, options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.cli.terminal.task_filter import FilterOptions

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.bulk import BulkOperation, BulkPreview

app = typer.Typer(
    help="Retry, cancel or reprioritise all tasks that match a filter.", no_args_is_help=True
)
BulkRef = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of the operation, or a unique beginning or ending of it."
    ),
]
POLL_SECONDS = 0.5
HEADERS = ("ID", "ACTION", "STATE", "DONE", "CHANGED", "SKIPPED", "REFUSED", "STARTED")


@dataclass(frozen=True)
class ActionOptions:
    """The options of a bulk action besides its filter."""

    everything: Annotated[
        bool, typer.Option("--everything", help="All your tasks.", rich_help_panel="Filter")
    ] = False
    preview: Annotated[
        bool, typer.Option("--preview", help="Print how many tasks match; change nothing.")
    ] = False
    yes: options.Yes = False
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until the operation has ended.")
    ] = False
    as_json: options.Json = False
    url: options.Url = None
    api_key_file: options.KeyFile = None


@app.command()
@options.with_option_groups
def retry(*, criteria: FilterOptions, action: ActionOptions) -> None:
    """Run all matching tasks again that failed or were cancelled."""
    _run("retry", criteria, action)


@app.command()
@options.with_option_groups
def cancel(
    bulk: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Stop this bulk operation instead of cancelling tasks."
        ),
    ] = None,
    *,
    criteria: FilterOptions,
    action: ActionOptions,
) -> None:
    """Cancel all matching tasks; with an ID, stop that bulk operation."""
    if bulk is None:
        _run("cancel", criteria, action)
        return
    if criteria.are_given or action.everything or action.preview:
        message = "ID and a filter cannot be used together"
        raise CommandFailure(message, code=Code.USAGE)
    with connection.client(action.url, action.api_key_file) as client:
        stopped = client.bulk.cancel(short_ids.resolve_bulk(client, bulk))
    _show(stopped, as_json=action.as_json)


@app.command()
@options.with_option_groups
def reprioritise(
    *,
    priority: Annotated[int | None, typer.Option(min=1, max=4, help="1 critical to 4 low.")] = None,
    priority_score: Annotated[
        int | None,
        typer.Option(
            "--score",
            min=0,
            max=100,
            help="Exact score instead of --priority; 0 is the most urgent.",
        ),
    ] = None,
    criteria: FilterOptions,
    action: ActionOptions,
) -> None:
    """Change the priority of all matching tasks that have not started."""
    if priority is None and priority_score is None:
        hint = "Pass --priority 1 to 4, or --score 0 to 100."
        raise CommandFailure("The new priority is missing.", hint=hint, code=Code.USAGE)
    _run("reprioritise", criteria, action, priority=priority, priority_score=priority_score)


@app.command("list")
def list_(
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest number of operations to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your bulk operations, newest first."""
    with connection.client(url, api_key_file) as client:
        operations = list(client.bulk.list(limit=limit))
    if as_json:
        output.document([task_output.as_document(operation) for operation in operations])
        return
    rows = [
        (
            output.Id(operation.id),
            operation.action,
            operation.state,
            f"{operation.done} of {operation.total}",
            operation.changed,
            operation.skipped,
            sum(operation.refused.values()),
            operation.created_at,
        )
        for operation in operations
    ]
    optional = ("SKIPPED", "CHANGED", "STARTED")
    output.table(HEADERS, rows, empty="No bulk operations.", optional=optional)


@app.command()
def show(
    bulk: BulkRef,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the progress until the operation has ended.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one bulk operation and its progress."""
    with connection.client(url, api_key_file) as client:
        bulk_id = short_ids.resolve_bulk(client, bulk)
        operation = _watch(client, bulk_id) if watch else client.bulk.get(bulk_id)
    _show(operation, as_json=as_json)


def _run(action: str, criteria: FilterOptions, chosen: ActionOptions, **order: int | None) -> None:
    """Print how many tasks match, ask for confirmation, start the operation and show it."""
    if not chosen.everything and not criteria.are_given:
        hint = "Pass a filter such as --status failed or --type report, or --everything."
        raise CommandFailure("The filter is missing.", hint=hint, code=Code.USAGE)
    with connection.client(chosen.url, chosen.api_key_file) as client:
        selected: dict[str, Any] = {**criteria.criteria(client), **order}
        if chosen.everything:
            selected["everything"] = True
        preview = client.bulk.preview(action, **selected)
        if chosen.preview:
            _show_preview(preview, as_json=chosen.as_json)
            return
        if not preview.applies:
            if chosen.as_json:
                output.document({"preview": task_output.as_document(preview), "operation": None})
            output.note(f"Nothing to {action}: {_count_text(preview)}.")
            return
        if not chosen.yes:
            _confirm(preview)
        started = client.bulk.start(action, **selected)
        ended = started if chosen.no_wait else _watch(client, started.id)
    if chosen.as_json:
        output.document(
            {
                "preview": task_output.as_document(preview),
                "operation": task_output.as_document(ended),
            }
        )
    else:
        _show(ended, as_json=False)
    if ended.state == "cancelled":
        raise CommandFailure(
            f"{ended.id} was cancelled before it had ended.", code=Code.NOT_COMPLETED
        )


def _confirm(preview: "BulkPreview") -> None:
    output.note(f"{_count_text(preview)}.")
    question = f"{preview.action.capitalize()} {preview.applies}?"
    confirm.confirm(question, hint="--preview prints the count and changes nothing.")


def _count_text(preview: "BulkPreview") -> str:
    verb = "matches" if preview.total == 1 else "match"
    matching = f"{task_output.count_tasks(preview.total)} {verb}"
    return f"{matching}, {preview.action} applies to {preview.applies}"


def _watch(client: "Client", bulk_id: str) -> "BulkOperation":
    """Wait for an operation, with a progress bar on a terminal."""
    try:
        with _progress_bar() as draw:
            return client.bulk.wait(bulk_id, poll=POLL_SECONDS, on_progress=draw)
    except KeyboardInterrupt:
        output.note(
            f"{bulk_id} is still in progress; continue waiting with"
            f" `overnight bulk show {bulk_id} --watch`."
        )
        raise


@contextmanager
def _progress_bar() -> Iterator[Callable[["BulkOperation"], None]]:
    """Yield a function that draws the progress; it draws nothing if stderr is no terminal."""
    if not output.is_terminal(sys.stderr):
        yield lambda _bulk: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        drawn = progress.add_task("waiting", total=None)

        def draw(bulk: "BulkOperation") -> None:
            progress.update(drawn, description=bulk.action, total=bulk.total, completed=bulk.done)

        yield draw


def _show_preview(preview: "BulkPreview", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.as_document(preview))
        return
    output.record(
        {
            "action": preview.action,
            "matching": str(preview.total),
            "applies to": str(preview.applies),
            "examples": preview.sample,
        }
    )


def _show(bulk: "BulkOperation", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.as_document(bulk))
        return
    output.record(
        {
            "id": bulk.id,
            "action": bulk.action,
            "score": bulk.priority_score,
            "filter": ", ".join(f"{name}={value}" for name, value in bulk.filter.items())
            or "everything",
            "state": bulk.state,
            "done": f"{bulk.done} of {bulk.total}",
            "changed": str(bulk.changed),
            "skipped": str(bulk.skipped),
            "refused": [f"{count} {reason}" for reason, count in bulk.refused.items()],
            "started": bulk.created_at,
            "ended": bulk.finished_at,
        }
    )
