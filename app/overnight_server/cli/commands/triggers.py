"""`overnight trigger`: submit a graph when another graph has ended."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch, dags
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight.models.account import Trigger
    from overnight.models.dags import DagCreate

app = typer.Typer(help="Submit a graph when another graph has ended.", no_args_is_help=True)
HEADERS = ("ID", "AFTER", "WHEN", "STATE", "TASKS", "TITLE")
CONDITIONS = ("completed", "failed", "finished")


@app.command("list")
def list_(
    *,
    dag: Annotated[
        str | None, typer.Option("--dag", metavar="ID", help="Only triggers of this graph.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=100, help="Largest number of triggers to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your triggers, newest first."""
    with connection.client(url, api_key_file) as client, short_ids.naming_option("--dag"):
        dag_id = None if dag is None else short_ids.resolve_dag(client, dag)
        triggers = client.triggers.list(dag_id=dag_id, limit=limit)
    if as_json:
        output.document([task_output.as_document(trigger) for trigger in triggers])
        return
    rows = [
        (
            output.Id(trigger.id),
            output.Id(trigger.dag_id),
            trigger.when,
            _state(trigger),
            trigger.tasks,
            trigger.title,
        )
        for trigger in triggers
    ]
    output.table(HEADERS, rows, empty="No triggers.", optional=("TASKS",))


@app.command()
def add(
    dag: dags.DagRef,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Graph to submit, YAML or JSON; - reads stdin.")
    ],
    *,
    when: Annotated[
        str, typer.Option(metavar="|".join(CONDITIONS), help="How the other graph must have ended.")
    ] = "completed",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Submit the graph of a file once, when another graph has ended."""
    if when not in CONDITIONS:
        hint = f"Allowed: {', '.join(CONDITIONS)}."
        raise CommandFailure(f"--when: {when!r} is not a condition", hint=hint, code=Code.USAGE)
    graph = _graph_in(file)
    with connection.client(url, api_key_file) as client:
        created = client.triggers.create(short_ids.resolve_dag(client, dag), graph, when=when)
    if as_json:
        output.document(task_output.as_document(created))
    else:
        output.line(created.id)
        parent = output.shown_id(created.dag_id)
        output.note(f"{created.title!r} will be submitted when {parent} is {created.when}.")


@app.command()
def remove(
    trigger: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id of the trigger, or a unique beginning or ending of it."
        ),
    ],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove a trigger that has not fired."""
    with connection.client(url, api_key_file) as client:
        removed = client.triggers.drop(short_ids.resolve_trigger(client, trigger))
    if as_json:
        output.document(task_output.as_document(removed))
    else:
        output.line(f"{removed.id} removed")


def _graph_in(file: str) -> "DagCreate":
    """Return the graph of a file; raise CommandFailure unless the file holds exactly one."""
    from overnight.models.dags import DagCreate

    name, entries = batch.read(file)
    graphs = [entry.content for entry in entries if isinstance(entry.content, DagCreate)]
    if len(graphs) != 1 or len(entries) != 1:
        single_tasks = task_output.count_tasks(len(entries) - len(graphs))
        raise CommandFailure(
            f"{name} holds {len(graphs)} graphs and {single_tasks}.",
            hint="A trigger submits one graph: an object with title and tasks.",
            code=Code.USAGE,
        )
    return graphs[0]


def _state(trigger: "Trigger") -> str:
    if trigger.dropped_at is not None:
        return "removed"
    if trigger.fired_dag_id is not None:
        return f"fired: {output.shown_id(trigger.fired_dag_id)}"
    if trigger.refusal is not None:
        return f"refused, will be retried: {trigger.refusal}"
    return "waiting" if trigger.due_at is None else "due"
