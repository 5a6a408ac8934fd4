"""`overnight dag`: look at graphs, draw them, stop them, and run parts of them again."""

from pathlib import Path
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import dag_tree, options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, Failure

app = typer.Typer(help="Look at graphs of tasks, draw them, stop them, run parts of them again.")
DagRef = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The graph's id, or any beginning or ending that only it has."
    ),
]
FORMATS = ("svg", "dot", "mermaid", "ascii")
SUFFIXES = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".txt": "ascii"}


@app.command("list")
def list_(
    *,
    status: Annotated[
        str | None,
        typer.Option(help="Only those that are pending, running, completed, failed or cancelled."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your graphs of several tasks, newest first."""
    with connection.client(url, api_key_file) as client:
        found = list(client.dags.list(status=status, limit=limit))
    if as_json:
        output.document([task_output.plain(one) for one in found])
        return
    rows = [
        (
            one.id,
            one.status.value,
            f"{one.counts.total - one.counts.open} of {one.counts.total}",
            dag_tree.money(one),
            one.created_at,
            one.title,
        )
        for one in found
    ]
    headers = ("ID", "STATUS", "ENDED", "SPENT", "CREATED", "TITLE")
    output.table(headers, rows, empty="No graphs.")


@app.command()
def show(
    dag: DagRef,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep looking until all of it has ended.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show a graph as a tree: states, durations and progress."""
    with connection.client(url, api_key_file) as client:
        dag_id = short_ids.resolve_dag(client, dag)
        found = (
            dag_tree.watch(client, dag_id, silently=as_json) if watch else client.dags.get(dag_id)
        )
    if as_json:
        output.document(task_output.plain(found))
    else:
        dag_tree.show(found)


@app.command()
def graph(
    dag: DagRef,
    *,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="What to draw it as; else what the file's suffix says, else svg.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to; else stdout.")
    ] = None,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Draw a graph, top to bottom."""
    form = _form(form, file)
    with connection.client(url, api_key_file) as client:
        found = client.dags.get(short_ids.resolve_dag(client, dag))
    from overnight.graphs.draw import FORMS

    picture = FORMS[form](found)
    if file is None:
        output.line(picture.rstrip("\n"))
        return
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}", code=Code.USAGE) from error
    output.note(f"Drew {len(found.tasks)} tasks to {file}.")


def _form(form: str | None, file: Path | None) -> str:
    """Return what to draw a graph as: as asked for, else as the file is named."""
    if form is None:
        if file is None:
            return "svg"
        if file.suffix.lower() not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise Failure(
                f"-o: {file.name!r} does not say what to draw",
                hint=f"End it in {known}, or give --format.",
                code=Code.USAGE,
            )
        return SUFFIXES[file.suffix.lower()]
    if form not in FORMATS:
        legal = f"Legal is {', '.join(FORMATS)}."
        raise Failure(f"--format: {form!r} is no format", hint=legal, code=Code.USAGE)
    return form


@app.command()
def cancel(
    dag: DagRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel what has not ended of a graph; what runs is asked to stop."""
    with connection.client(url, api_key_file) as client:
        dag_id = short_ids.resolve_dag(client, dag)
        answer = client.dags.cancel(dag_id)
    if as_json:
        output.document({"id": dag_id, **task_output.plain(answer)})
    else:
        asked = f", {answer.stopping} asked to stop" if answer.stopping else ""
        output.line(f"{dag_id} is {answer.status.value}: {answer.cancelled} cancelled{asked}")


@app.command()
def retry(
    named: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A graph's id, or a task's, or any beginning or ending that only it has.",
        ),
    ],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Run a task again that failed or was cancelled, with all that ended because of it.

    Of a graph, everything that failed or was cancelled.
    """
    with connection.client(url, api_key_file) as client:
        answer = client.dags.retry(short_ids.resolve_either(client, named))
    if as_json:
        output.document(task_output.plain(answer))
    else:
        output.line(answer.dag_id)
        output.note(
            f"{task_output.tasks(len(answer.tasks))} came back;"
            f" `overnight dag show {answer.dag_id}` follows them."
        )


@app.command()
def fork(
    task: options.TaskRef,
    *,
    title: Annotated[
        str | None, typer.Option(help="What to call it; else as the old graph.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Make a new graph that runs a task and all after it anew; the old one stays."""
    with connection.client(url, api_key_file) as client:
        answer = client.dags.fork(short_ids.resolve(client, task), title=title)
    if as_json:
        output.document(task_output.plain(answer))
    else:
        output.line(answer.id)
        output.note(
            f"Forked from {answer.forked_from}; `overnight dag show {answer.id}` follows it."
        )
