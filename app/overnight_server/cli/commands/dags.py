"""`overnight dag`: show, draw, cancel and retry graphs of tasks."""

from pathlib import Path
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import task_changes
from overnight_server.cli.terminal import dag_tree, options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

app = typer.Typer(help="Show, draw, cancel and retry graphs of tasks.", no_args_is_help=True)
DagRef = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of the graph, or a unique beginning or ending of it."),
]
app.command("retry")(task_changes.retry)
FORMATS = ("svg", "dot", "mermaid", "ascii")
SUFFIXES = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".txt": "ascii"}


@app.command("list")
def list_(
    *,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only graphs with this status: pending, running, completed, failed or cancelled."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest number of graphs to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your graphs of several tasks, newest first."""
    with connection.client(url, api_key_file) as client:
        dags = list(client.dags.list(status=status, limit=limit))
    if as_json:
        output.document([task_output.as_document(dag) for dag in dags])
        return
    rows = [
        (
            output.Id(dag.id),
            dag.status.value,
            f"{dag.counts.total - dag.counts.open} of {dag.counts.total}",
            dag_tree.spent_text(dag),
            dag.created_at,
            dag.title,
        )
        for dag in dags
    ]
    headers = ("ID", "STATUS", "ENDED", "SPENT", "CREATED", "TITLE")
    output.table(headers, rows, empty="No graphs.", optional=("SPENT", "CREATED", "ENDED"))


@app.command()
def show(
    dag: DagRef,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the tree until the graph has ended.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Print a graph as a tree with states, durations and progress."""
    with connection.client(url, api_key_file) as client:
        dag_id = short_ids.resolve_dag(client, dag)
        if watch:
            shown = dag_tree.watch(client, dag_id, silently=as_json)
        else:
            shown = client.dags.get(dag_id)
    if as_json:
        output.document(task_output.as_document(shown))
    else:
        dag_tree.show(shown)


@app.command()
def graph(
    dag: DagRef,
    *,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of the drawing. Default: by the suffix of the file, else svg.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write. Default: stdout."),
    ] = None,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Draw a graph from top to bottom."""
    form = _form(form, file)
    with connection.client(url, api_key_file) as client:
        drawn = client.dags.get(short_ids.resolve_dag(client, dag))
    from overnight.graphs.draw import FORMS

    picture = FORMS[form](drawn)
    if file is None:
        output.line(picture.rstrip("\n"))
        return
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise CommandFailure(f"cannot write {file}: {error.strerror}", code=Code.USAGE) from error
    output.note(f"Drew {len(drawn.tasks)} tasks to {file}.")


def _form(form: str | None, file: Path | None) -> str:
    """Return the format of the drawing: the option, else the suffix of the file, else svg."""
    if form is None:
        if file is None:
            return "svg"
        if file.suffix.lower() not in SUFFIXES:
            raise CommandFailure(
                f"-o: the suffix of {file.name!r} is not that of a drawing",
                hint=f"Use one of {', '.join(SUFFIXES)}, or pass --format.",
                code=Code.USAGE,
            )
        return SUFFIXES[file.suffix.lower()]
    if form not in FORMATS:
        hint = f"Allowed: {', '.join(FORMATS)}."
        raise CommandFailure(f"--format: {form!r} is not a format", hint=hint, code=Code.USAGE)
    return form


@app.command()
def cancel(
    dag: DagRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel all tasks of a graph that have not ended; running tasks are requested to stop."""
    with connection.client(url, api_key_file) as client:
        dag_id = short_ids.resolve_dag(client, dag)
        result = client.dags.cancel(dag_id)
    if as_json:
        output.document({"id": dag_id, **task_output.as_document(result)})
    else:
        stopping = f", {result.stopping} running requested to stop" if result.stopping else ""
        shown = output.shown_id(dag_id)
        output.line(f"{shown} is {result.status.value}: {result.cancelled} cancelled{stopping}")


@app.command()
def fork(
    task: options.TaskRef,
    *,
    title: Annotated[
        str | None, typer.Option(help="Title of the new graph. Default: that of the old one.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create a new graph that runs a task and everything after it again; the old one stays."""
    with connection.client(url, api_key_file) as client:
        created = client.dags.fork(short_ids.resolve(client, task), title=title)
    if as_json:
        output.document(task_output.as_document(created))
    else:
        output.line(created.id)
        output.note(
            f"Forked from {output.shown_id(created.forked_from)}; watch with"
            f" `overnight dag show {output.shown_id(created.id)} --watch`."
        )
