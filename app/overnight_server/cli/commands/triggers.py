"""`overnight trigger`: have a graph let in when another has ended, look at such, take them back."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch, dags
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight.models.account import Trigger
    from overnight.models.dags import DagCreate

app = typer.Typer(help="Have graphs let in when others have ended.")
HEADERS = ("ID", "AFTER", "WHEN", "STANDS", "TASKS", "TITLE")
ENDS = ("completed", "failed", "finished")


@app.command("list")
def list_(
    *,
    dag: Annotated[
        str | None, typer.Option("--dag", metavar="ID", help="Only those of this graph.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List what the ends of your graphs set off, the newest first."""
    with connection.client(url, api_key_file) as client, short_ids.blamed_on("--dag"):
        named = None if dag is None else short_ids.resolve_dag(client, dag)
        found = client.triggers.list(dag_id=named, limit=limit)
    if as_json:
        output.document([task_output.plain(one) for one in found])
        return
    rows = [
        (one.id, one.dag_id, one.when, _standing(one), str(one.tasks), one.title) for one in found
    ]
    output.table(HEADERS, rows, empty="No triggers.")


@app.command()
def add(
    dag: dags.DagRef,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The graph to let in, YAML or JSON; - is stdin.")
    ],
    *,
    when: Annotated[
        str, typer.Option(metavar="|".join(ENDS), help="How the first graph must end.")
    ] = "completed",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Have the graph of a file let in, once, when another graph has ended."""
    if when not in ENDS:
        legal = f"Legal is {', '.join(ENDS)}."
        raise Failure(f"--when: {when!r} is no end of a graph", hint=legal, code=Code.USAGE)
    graph = _graph_in(file)
    with connection.client(url, api_key_file) as client:
        made = client.triggers.create(short_ids.resolve_dag(client, dag), graph, when=when)
    if as_json:
        output.document(task_output.plain(made))
    else:
        output.line(made.id)
        output.note(f"{made.title!r} is let in when {made.dag_id} is {made.when}.")


@app.command()
def remove(
    trigger: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The trigger's id, or any beginning or ending that only it has."
        ),
    ],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Take a trigger back that has not fired."""
    with connection.client(url, api_key_file) as client:
        gone = client.triggers.drop(short_ids.resolve_trigger(client, trigger))
    if as_json:
        output.document(task_output.plain(gone))
    else:
        output.line(f"{gone.id} removed")


def _graph_in(file: str) -> "DagCreate":
    """Return the one graph that a file holds."""
    from overnight.models.dags import DagCreate

    name, found = batch.read(file)
    graphs = [one.what for one in found if isinstance(one.what, DagCreate)]
    if len(graphs) != 1 or len(found) != 1:
        raise Failure(
            f"{name} holds {len(graphs)} graphs and {task_output.tasks(len(found) - len(graphs))}",
            hint="A trigger lets in one graph: an object with title and tasks.",
            code=Code.USAGE,
        )
    return graphs[0]


def _standing(trigger: "Trigger") -> str:
    if trigger.dropped_at is not None:
        return "removed"
    if trigger.fired_dag_id is not None:
        return f"fired: {trigger.fired_dag_id}"
    if trigger.refusal is not None:
        return f"refused, is tried again: {trigger.refusal}"
    return "waiting" if trigger.due_at is None else "due"
