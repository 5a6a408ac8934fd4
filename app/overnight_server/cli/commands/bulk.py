"""`overnight bulk`: do something to many tasks at once, and see how far it has got."""

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
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.bulk import BulkOperation, BulkPreview

app = typer.Typer(help="Retry, cancel or reprioritise all tasks that a filter chooses.")
BulkRef = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The operation's id, or any beginning or ending that only it has."
    ),
]
CHOOSING = "Which tasks"
Status = Annotated[
    str | None,
    typer.Option(
        "--status", "--state", help="Only in this status or state.", rich_help_panel=CHOOSING
    ),
]
Type = Annotated[
    str | None, typer.Option("--type", help="Only of this type.", rich_help_panel=CHOOSING)
]
Tag = Annotated[
    str | None, typer.Option("--tag", help="Only with this tag.", rich_help_panel=CHOOSING)
]
Project = Annotated[
    str | None, typer.Option("--project", help="Only of this project.", rich_help_panel=CHOOSING)
]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Only what came through this door.", rich_help_panel=CHOOSING),
]
Title = Annotated[
    str | None,
    typer.Option("--title", help="Whose title has these words.", rich_help_panel=CHOOSING),
]
After = Annotated[
    datetime | None,
    typer.Option(
        "--created-after",
        metavar="INSTANT",
        help="Made then or later: 2030-01-31T07:00Z, or 8h for so long ago.",
        parser=arguments.moment,
        rich_help_panel=CHOOSING,
    ),
]
Before = Annotated[
    datetime | None,
    typer.Option(
        "--created-before",
        metavar="INSTANT",
        help="Made before then.",
        parser=arguments.moment,
        rich_help_panel=CHOOSING,
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="All your tasks.", rich_help_panel=CHOOSING)
]
Preview = Annotated[bool, typer.Option("--preview", help="Tell how many, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")]
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
    yes: Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Run all chosen tasks again that failed or were cancelled."""
    chosen = _chosen(locals())
    _act("retry", chosen, _Manner(preview, yes, no_wait, as_json, url, api_key_file))


@app.command()
def cancel(
    bulk: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Stop this bulk operation instead of tasks."),
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
    yes: Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel all chosen tasks; with an ID, let that bulk operation go no further."""
    chosen = _chosen(locals())
    if bulk is None:
        _act("cancel", chosen, _Manner(preview, yes, no_wait, as_json, url, api_key_file))
        return
    if chosen or preview:
        message = "an operation's ID and a filter of tasks exclude each other"
        raise Failure(message, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        stopped = client.bulk.cancel(short_ids.resolve_bulk(client, bulk))
    _show(stopped, as_json=as_json)


@app.command()
def reprioritise(
    *,
    priority: Annotated[int | None, typer.Option(min=1, max=4, help="1 critical to 4 low.")] = None,
    priority_score: Annotated[
        int | None, typer.Option("--score", min=0, max=100, help="The exact score instead.")
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
    yes: Yes = False,
    no_wait: NoWait = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let all chosen tasks that wait go earlier, or later."""
    if priority is None and priority_score is None:
        hint = "Give --priority 1 to 4, or --score 0 to 100."
        raise Failure("no priority was given", hint=hint, code=Code.USAGE)
    chosen = _chosen(locals())
    order = {"priority": priority, "priority_score": priority_score}
    manner = _Manner(preview, yes, no_wait, as_json, url, api_key_file)
    _act("reprioritise", {**chosen, **order}, manner)


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your bulk operations, newest first."""
    with connection.client(url, api_key_file) as client:
        found = list(client.bulk.list(limit=limit))
    if as_json:
        output.document([task_output.plain(one) for one in found])
        return
    rows = [
        (
            one.id,
            one.action,
            one.state,
            f"{one.done} of {one.total}",
            one.changed,
            one.skipped,
            sum(one.refused.values()),
            one.created_at,
        )
        for one in found
    ]
    output.table(HEADERS, rows, empty="No bulk operations.")


@app.command()
def show(
    bulk: BulkRef,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep looking until it has ended.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one bulk operation, and how far it has got."""
    with connection.client(url, api_key_file) as client:
        bulk_id = short_ids.resolve_bulk(client, bulk)
        found = _watched(client, bulk_id) if watch else client.bulk.get(bulk_id)
    _show(found, as_json=as_json)


@dataclass(frozen=True)
class _Manner:
    """How a command is to go about it, and where."""

    preview: bool
    yes: bool
    no_wait: bool
    as_json: bool
    url: str | None
    key_file: Path | None


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Return what was said of which tasks are meant, in the words of the service."""
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
    chosen = {wire: given[name] for name, wire in names.items() if given[name] is not None}
    if given["everything"]:
        chosen["everything"] = True
    if not chosen and given.get("bulk") is None:
        hint = "Say which tasks, such as --status failed or --type report; or --everything."
        raise Failure("without a filter every task is chosen", hint=hint, code=Code.USAGE)
    return chosen


def _act(action: str, order: dict[str, Any], manner: _Manner) -> None:
    """Tell how many, ask, do it, and show how it goes."""
    with connection.client(manner.url, manner.key_file) as client:
        would = client.bulk.preview(action, **order)
        if manner.preview:
            _show_preview(would, as_json=manner.as_json)
            return
        if not would.applies:
            if manner.as_json:
                output.document({"preview": task_output.plain(would), "operation": None})
            output.note(f"Nothing to {action}: {_counted(would)}.")
            return
        if not manner.yes:
            _ask(would)
        started = client.bulk.start(action, **order)
        ended = started if manner.no_wait else _watched(client, started.id)
    if manner.as_json:
        documents = {"preview": task_output.plain(would), "operation": task_output.plain(ended)}
        output.document(documents)
    else:
        _show(ended, as_json=False)
    if ended.state == "cancelled":
        raise Failure(f"{ended.id} was cancelled meanwhile", code=Code.ENDED_BADLY)


def _ask(would: "BulkPreview") -> None:
    output.note(f"{_counted(would)[:1].upper()}{_counted(would)[1:]}.")
    if not output.is_terminal(sys.stdin):
        hint = "Give --yes to go on, or --preview to look only."
        raise Failure("nobody can be asked here", hint=hint, code=Code.USAGE)
    confirm.confirm(f"{would.action.capitalize()} {would.applies}?")


def _counted(would: "BulkPreview") -> str:
    chosen = f"{would.total} task{'' if would.total == 1 else 's'} chosen"
    return f"{chosen}, {would.action} applies to {would.applies}"


def _watched(client: "Client", bulk_id: str) -> "BulkOperation":
    """Wait for an operation where a person can see it."""
    try:
        with _bar() as draw:
            return client.bulk.wait(bulk_id, poll=POLL_SECONDS, on_progress=draw)
    except KeyboardInterrupt:
        output.note(f"{bulk_id} goes on; `overnight bulk show {bulk_id} --watch` looks again.")
        raise


@contextmanager
def _bar() -> Iterator[Callable[["BulkOperation"], None]]:
    """Give a function that draws how far an operation is; silent unless a person looks."""
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


def _show_preview(would: "BulkPreview", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.plain(would))
        return
    output.record(
        {
            "action": would.action,
            "chosen": str(would.total),
            "applies to": str(would.applies),
            "such as": would.sample,
        }
    )


def _show(bulk: "BulkOperation", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.plain(bulk))
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
