"""`overnight plan`: rehearse what a file describes before it is queued."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch, batch_files, forecast
from overnight_server.cli.terminal import arguments, options, output, task_output
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.tasks import Plan

# What makes a graph's task one: the others wait for it by this name.
OF_GRAPHS = frozenset({"name", "after", "depends_on"})


def plan(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What `overnight batch` takes, or an object of tasks and edges such as [0, 1];"
            " - reads stdin.",
        ),
    ],
    *,
    by: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="Say how many will be done by then, such as 07:00 (in this machine's time zone)"
            " or 2030-01-31T07:00Z.",
            parser=arguments.coming,
        ),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Rehearse a batch before submitting it; nothing is queued.

    Each graph of a file, and its lone tasks together, are simulated as if they came alone.
    """
    text = arguments.text_of(file if file == "-" else f"@{file}")
    name = batch.name_of(file)
    paired = _in_pairs(text)
    found = [] if paired else batch.parsed(name, text)
    with connection.client(url, api_key_file) as client:
        plans = (
            [(name, _simulated(client, paired, by))]
            if paired
            else batch.simulated(client, name, found, by)
        )
    if as_json:
        documents = [{"title": title, **task_output.plain(answer)} for title, answer in plans]
        output.document(documents if len(documents) > 1 else documents[0])
        return
    for title, answer in plans:
        if len(plans) > 1:
            output.line(f"{title}:")
        forecast.show_plan(answer)


def _in_pairs(text: str) -> dict[str, Any] | None:
    """Return a batch without names, whose edges are places in its list; None if it is none."""
    try:
        [document] = batch_files.read(text)
    except (batch_files.Unreadable, ValueError):
        return None  # told by the reader of batches, with the line
    match document.value:
        case {"tasks": list(tasks), **rest} if rest.keys() <= {"edges"} and not any(
            isinstance(task, dict) and OF_GRAPHS & task.keys() for task in tasks
        ):
            return dict(document.value)
    return None


def _simulated(client: "Client", given: dict[str, Any], by: datetime | None) -> "Plan":
    try:
        tasks = [dict(task) for task in given["tasks"]]
        edges = [(int(parent), int(child)) for parent, child in given.get("edges") or ()]
    except (TypeError, ValueError) as error:
        raise Failure(
            "the batch is neither a list of tasks nor an object with tasks",
            hint='Legal is [{"title": "…"}] or {"tasks": […], "edges": [[0, 1]]}.',
            code=Code.USAGE,
        ) from error
    return client.plan(tasks, edges=edges, by_at=by)
