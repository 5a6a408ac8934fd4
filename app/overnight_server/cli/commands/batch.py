"""`overnight batch` and `overnight plan`: submit or simulate the tasks of a file."""

import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files, batch_resume, forecast
from overnight_server.cli.terminal import arguments, options, output, task_output, wait_for_task
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client, Task
    from overnight.models.dags import DagCreated
    from overnight.models.tasks import Plan

HEADERS = ("ID", "TASKS", "TITLE")
STDIN = "stdin"
# A task with one of these fields belongs to a graph whose tasks have names.
GRAPH_FIELDS = frozenset({"name", "after", "depends_on"})


def batch(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="YAML or JSON file; - reads stdin."),
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Simulate the batch and submit nothing.")
    ] = False,
    by: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="With --dry-run: how many tasks will have ended by then, such as 07:00.",
            parser=arguments.instant,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything has ended.")] = False,
    wait_timeout: options.WaitTimeout = options.TEN_MINUTES,
    print_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the file and exit.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Submit the graphs and tasks of a file; a graph is submitted completely or not at all.

    If the command is interrupted or fails, the same command submits the rest and nothing twice.
    """
    if print_schema:
        output.document(batch_files.schema())
        return
    if file is None:
        raise CommandFailure(
            "FILE is missing.", hint="Pass a file, or - for stdin.", code=Code.USAGE
        )
    if dry_run and wait:
        raise CommandFailure("--dry-run and --wait cannot be used together", code=Code.USAGE)
    if by is not None and not dry_run:
        raise CommandFailure("--by needs --dry-run: it is about the simulation", code=Code.USAGE)
    name, entries = read(file)
    with connection.client(url, api_key_file) as client:
        if dry_run:
            _show_verdicts(_simulate(client, name, entries, by), as_json=as_json)
        else:
            server = connection.find_server(url, api_key_file).url
            source = str(Path(file).resolve()) if file != "-" else json.dumps(_raw(entries))
            with batch_resume.batch_run(server, source) as run:
                created = _submit(client, name, entries, run, as_json=as_json)
            if wait:
                _wait(client, created, wait_timeout, as_json=as_json)
            else:
                _show(created, as_json=as_json)


def plan(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file for `overnight batch`, or an object of tasks and edges such as [0, 1];"
            " - reads stdin.",
        ),
    ],
    *,
    by: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="Print how many tasks will have ended by then, such as 07:00 (local time) or"
            " 2030-01-31T07:00Z.",
            parser=arguments.future_instant,
        ),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Simulate a batch: when its tasks would start and end. Nothing is submitted.

    Each graph of the file is simulated separately, and so are its single tasks together.
    """
    text = _text_of(file)
    name = _name_of(file)
    indexed = _indexed_batch(text)
    entries = [] if indexed else _parse(name, text)
    with connection.client(url, api_key_file) as client:
        plans = (
            [(name, _simulate_indexed(client, indexed, by))]
            if indexed
            else _simulate(client, name, entries, by)
        )
    if as_json:
        documents = [{"title": title, **task_output.as_document(plan)} for title, plan in plans]
        output.document(documents if len(documents) > 1 else documents[0])
        return
    for title, simulated in plans:
        if len(plans) > 1:
            output.line(f"{title}:")
        forecast.show_plan(simulated)


def read(file: str) -> tuple[str, list[batch_files.Entry]]:
    """Return the file name for messages, and its entries; raise CommandFailure for any fault."""
    name = _name_of(file)
    return name, _parse(name, _text_of(file))


def _text_of(file: str) -> str:
    try:
        return arguments.text_of(file if file == "-" else f"@{file}")
    except typer.BadParameter as error:
        raise CommandFailure(f"FILE: {error}", code=Code.USAGE) from error


def _name_of(file: str) -> str:
    return STDIN if file == "-" else file


def _parse(name: str, text: str) -> list[batch_files.Entry]:
    try:
        entries, faults = batch_files.entries(batch_files.read(text))
    except batch_files.Unreadable as error:
        raise _failure(name, [batch_files.FileFault(error.line, "", str(error))]) from error
    if faults:
        raise _failure(name, faults)
    return entries


def _failure(
    name: str, faults: list[batch_files.FileFault], *, submitted: int = 0
) -> CommandFailure:
    """Return a failure that reports every fault: as lines for people, as fields for programs."""
    lines = [fault.line_text(name) for fault in faults]
    fields = [{"file": name, **asdict(fault)} for fault in faults]
    if len(lines) == 1:
        return CommandFailure(lines[0], code=Code.USAGE, faults=fields)
    before = f"{submitted} were submitted before" if submitted else "nothing was submitted"
    message = f"{name} has {len(faults)} faults; {before}"
    return CommandFailure(message, code=Code.USAGE, lines=lines, faults=fields)


def _raw(entries: list[batch_files.Entry]) -> list[Any]:
    return [entry.raw for entry in entries]


def _submit(
    client: "Client",
    name: str,
    entries: list[batch_files.Entry],
    run: batch_resume.BatchRun,
    *,
    as_json: bool,
) -> "list[DagCreated | Task]":
    """Submit the entries in their order; those without a key of their own get that of the run."""
    from overnight import OvernightError, errors
    from overnight.models.dags import DagCreate

    if run.is_resumed and not as_json:
        output.note(
            "An earlier command began this batch and did not end it: what it submitted is not"
            " submitted again."
        )
    created: list[DagCreated | Task] = []
    for entry in entries:
        content = entry.content
        if content.idempotency_key is None:
            content = content.model_copy(update={"idempotency_key": run.key_of(entry)})
        try:
            if isinstance(content, DagCreate):
                created.append(client.dags.create(content))
            else:
                fields: dict[str, Any] = content.model_dump(exclude_unset=True)
                created.append(client.tasks.create(**fields))
        except (OvernightError, KeyboardInterrupt) as error:
            if created and as_json:
                _show(created, as_json=True)
            elif created:
                output.note(f"{len(created)} of {len(entries)} were submitted before the failure:")
                _show(created, as_json=False)
            if not as_json:
                output.note("The same command submits the rest, and nothing twice.")
            if isinstance(error, errors.InvalidRequest) and error.fields:
                faults = [
                    entry.fault(wrong.field, wrong.message, wrong.legal) for wrong in error.fields
                ]
                raise _failure(name, faults, submitted=len(created)) from error
            raise
    return created


def _show(created: "list[DagCreated | Task]", *, as_json: bool) -> None:
    if as_json:
        output.document(_document(created))
    else:
        output.table(HEADERS, [_row(submission) for submission in created])


def _document(submissions: "list[Any]") -> dict[str, object]:
    from overnight.models.tasks import TaskResponse

    tasks = [
        task_output.as_document(task) for task in submissions if isinstance(task, TaskResponse)
    ]
    dags = [
        task_output.as_document(dag) for dag in submissions if not isinstance(dag, TaskResponse)
    ]
    return {"dags": dags, "tasks": tasks}


def _row(submission: "DagCreated | Task") -> tuple[object, ...]:
    from overnight.models.tasks import TaskResponse

    count = 1 if isinstance(submission, TaskResponse) else len(submission.tasks)
    return (output.Id(submission.id), count, submission.title)


def _simulate(
    client: "Client", name: str, entries: list[batch_files.Entry], by: datetime | None
) -> "list[tuple[str, Plan]]":
    """Return title and simulation of each graph, and of all single tasks together."""
    from overnight.models.dags import DagCreate

    dags = [entry.content for entry in entries if isinstance(entry.content, DagCreate)]
    single_tasks = [
        entry.content.model_dump(exclude_unset=True)
        for entry in entries
        if not isinstance(entry.content, DagCreate)
    ]
    plans = [(graph.title, client.dags.plan(graph, by_at=by)) for graph in dags]
    if single_tasks:
        plans.append((f"{name}, single tasks", client.plan(single_tasks, by_at=by)))
    return plans


def _indexed_batch(text: str) -> dict[str, Any] | None:
    """Return a batch whose edges are indexes of its task list; None if the text is none."""
    try:
        [document] = batch_files.read(text)
    except (batch_files.Unreadable, ValueError):
        return None  # _parse reports the fault, with its line
    match document.value:
        case {"tasks": list(tasks), **rest} if rest.keys() <= {"edges"} and not any(
            isinstance(task, dict) and GRAPH_FIELDS & task.keys() for task in tasks
        ):
            return dict(document.value)
    return None


def _simulate_indexed(client: "Client", batch: dict[str, Any], by: datetime | None) -> "Plan":
    try:
        tasks = [dict(task) for task in batch["tasks"]]
        edges = [(int(parent), int(child)) for parent, child in batch.get("edges") or ()]
    except (TypeError, ValueError) as error:
        raise CommandFailure(
            "The batch is neither a list of tasks nor an object with tasks.",
            hint='Write [{"title": "…"}] or {"tasks": […], "edges": [[0, 1]]}.',
            code=Code.USAGE,
        ) from error
    return client.plan(tasks, edges=edges, by_at=by)


def _show_verdicts(plans: "list[tuple[str, Plan]]", *, as_json: bool) -> None:
    if as_json:
        output.document(
            [{"title": title, **task_output.as_document(plan)} for title, plan in plans]
        )
        return
    for title, simulated in plans:
        output.line(f"{title}: {forecast.verdict(simulated)}")
        for note in simulated.notes:
            output.note(f"Note: {note}.")
    output.note("Nothing was submitted.")


def _wait(
    client: "Client", created: "list[DagCreated | Task]", timeout: float, *, as_json: bool
) -> None:
    """Wait for everything, print it, and raise the first failure."""
    from overnight import errors
    from overnight.models.tasks import TaskResponse

    deadline = time.monotonic() + timeout
    ended: list[Any] = []
    failures: list[Exception] = []
    waited_for = [submission.id for submission in created]
    with wait_for_task.resume_advice(waited_for):
        for submission in created:
            left = max(0.0, deadline - time.monotonic())
            if isinstance(submission, TaskResponse):
                task = client.tasks.wait(submission.id, timeout=left, check=False)
                ended.append(task)
                failures += [errors.TaskFailed(task)] if task.state != "completed" else []
            else:
                dag = client.dags.wait(submission.id, timeout=left, check=False)
                ended.append(dag)
                failures += [errors.DagFailed(dag)] if dag.status != "completed" else []
            waited_for.remove(submission.id)
    if as_json:
        output.document(_document(ended))
    else:
        rows = [
            (output.Id(item.id), getattr(item, "state", None) or item.status.value, item.title)
            for item in ended
        ]
        output.table(("ID", "STATE", "TITLE"), rows)
    if failures:
        raise failures[0]
