"""`overnight bulk`: retry, cancel or reprioritise many tasks at once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import (
    arguments,
    confirm,
    options,
    output,
    short_ids,
    task_output,
)
from overnight_server.cli.terminal.failures import Code, CommandFailure

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
FILTER = "Filter"
Status = Annotated[
    str | None,
    typer.Option(
        "--status", "--state", help="Only tasks in this status or state.", rich_help_panel=FILTER
    ),
]
Type = Annotated[
    str | None, typer.Option("--type", help="Only tasks of this type.", rich_help_panel=FILTER)
]
Tag = Annotated[
    str | None, typer.Option("--tag", help="Only tasks with this tag.", rich_help_panel=FILTER)
]
Project = Annotated[
    str | None,
    typer.Option("--project", help="Only tasks of this project.", rich_help_panel=FILTER),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source", help="Only tasks from this source, such as api or cli.", rich_help_panel=FILTER
    ),
]
Title = Annotated[
    str | None,
    typer.Option(
        "--title", help="Only tasks whose title contains this text.", rich_help_panel=FILTER
    ),
]
After = Annotated[
    datetime | None,
    typer.Option(
        "--created-after",
        metavar="INSTANT",
        help="Only tasks created at this instant or later, such as 8h (ago) or 2030-01-31T07:00Z.",
        parser=arguments.past_instant,
        rich_help_panel=FILTER,
    ),
]
Before = Annotated[
    datetime | None,
    typer.Option(
        "--created-before",
        metavar="INSTANT",
        help="Only tasks created before this instant.",
        parser=arguments.past_instant,
        rich_help_panel=FILTER,
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="All your tasks.", rich_help_panel=FILTER)
]
Preview = Annotated[
    bool, typer.Option("--preview", help="Print how many tasks match; change nothing.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait until the operation has ended.")
]
POLL_SECONDS = 0.5
HEADERS = ("ID", "ACTION", "STATE", "DONE", "CHANGED", "SKIPPED", "REFUSED", "STARTED")


@app.command()
def retry(
    *,
    status: Status = None,
    of_type: Type = None,
    tag: Tag = None,
    project: Project = None,
    source: Source = None,
    title: Title = None,
    created_after: After = None,
    created_before: Before = None,
    everything: Everything = False,
    preview: Preview = False,
    yes: options.Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Run all matching tasks again that failed or were cancelled."""
    chosen = _filter(locals())
    _run("retry", chosen, _Mode(preview, yes, no_wait, as_json, url, api_key_file))


@app.command()
def cancel(
    bulk: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Stop this bulk operation instead of cancelling tasks."
        ),
    ] = None,
    *,
    status: Status = None,
    of_type: Type = None,
    tag: Tag = None,
    project: Project = None,
    source: Source = None,
    title: Title = None,
    created_after: After = None,
    created_before: Before = None,
    everything: Everything = False,
    preview: Preview = False,
    yes: options.Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel all matching tasks; with an ID, stop that bulk operation."""
    chosen = _filter(locals())
    if bulk is None:
        _run("cancel", chosen, _Mode(preview, yes, no_wait, as_json, url, api_key_file))
        return
    if chosen or preview:
        message = "ID and a filter exclude each other"
        raise CommandFailure(message, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        stopped = client.bulk.cancel(short_ids.resolve_bulk(client, bulk))
    _show(stopped, as_json=as_json)


@app.command()
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
    status: Status = None,
    of_type: Type = None,
    tag: Tag = None,
    project: Project = None,
    source: Source = None,
    title: Title = None,
    created_after: After = None,
    created_before: Before = None,
    everything: Everything = False,
    preview: Preview = False,
    yes: options.Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Change the priority of all matching tasks that have not started."""
    if priority is None and priority_score is None:
        hint = "Pass --priority 1 to 4, or --score 0 to 100."
        raise CommandFailure("The new priority is missing.", hint=hint, code=Code.USAGE)
    chosen = _filter(locals())
    order = {"priority": priority, "priority_score": priority_score}
    mode = _Mode(preview, yes, no_wait, as_json, url, api_key_file)
    _run("reprioritise", {**chosen, **order}, mode)


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


@dataclass(frozen=True)
class _Mode:
    """The options of a bulk command besides the filter."""

    preview: bool
    yes: bool
    no_wait: bool
    as_json: bool
    url: str | None
    key_file: Path | None


def _filter(values: dict[str, Any]) -> dict[str, Any]:
    """Return the filter that the options describe, with the field names of the API."""
    names = {
        "status": "status",
        "of_type": "type",
        "tag": "tag",
        "project": "project_id",
        "source": "source",
        "title": "title",
        "created_after": "created_after",
        "created_before": "created_before",
    }
    fields = {wire: values[name] for name, wire in names.items() if values[name] is not None}
    if values["everything"]:
        fields["everything"] = True
    if not fields and values.get("bulk") is None:
        hint = "Pass a filter such as --status failed or --type report, or --everything."
        raise CommandFailure("The filter is missing.", hint=hint, code=Code.USAGE)
    return fields


def _run(action: str, order: dict[str, Any], mode: _Mode) -> None:
    """Print how many tasks match, ask for confirmation, start the operation and show it."""
    with connection.client(mode.url, mode.key_file) as client:
        preview = client.bulk.preview(action, **order)
        if mode.preview:
            _show_preview(preview, as_json=mode.as_json)
            return
        if not preview.applies:
            if mode.as_json:
                output.document({"preview": task_output.as_document(preview), "operation": None})
            output.note(f"Nothing to {action}: {_count_text(preview)}.")
            return
        if not mode.yes:
            _confirm(preview)
        started = client.bulk.start(action, **order)
        ended = started if mode.no_wait else _watch(client, started.id)
    if mode.as_json:
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
