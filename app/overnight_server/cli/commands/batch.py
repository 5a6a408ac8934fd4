"""`overnight batch`: queue what a file describes, each graph whole or not at all."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files, forecast
from overnight_server.cli.terminal import arguments, options, output, task_output, wait_for_task
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Client, Task
    from overnight.models.dags import DagCreated
    from overnight.models.tasks import Plan

HEADERS = ("ID", "TASKS", "TITLE")
STDIN = "stdin"


def batch(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="YAML or JSON; - reads stdin."),
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Rehearse it and queue nothing.")
    ] = False,
    by: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="With --dry-run: how many will be done by then, such as 07:00.",
            parser=arguments.instant,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of it has ended.")] = False,
    wait_timeout: options.WaitTimeout = options.TEN_MINUTES,
    print_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the file, and exit.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Queue the graphs and tasks of a file; each graph goes in whole or not at all."""
    if print_schema:
        output.document(batch_files.schema())
        return
    if file is None:
        raise Failure("name a FILE, or - for stdin", code=Code.USAGE)
    if dry_run and wait:
        raise Failure("--dry-run and --wait exclude each other", code=Code.USAGE)
    if by is not None and not dry_run:
        raise Failure("--by asks about a rehearsal: give --dry-run too", code=Code.USAGE)
    name, found = read(file)
    with connection.client(url, api_key_file) as client:
        if dry_run:
            _show_plans(simulated(client, name, found, by), as_json=as_json)
        else:
            made = _submit(client, name, found, as_json=as_json)
            if wait:
                _wait(client, made, wait_timeout, as_json=as_json)
            else:
                _show(made, as_json=as_json)


def read(file: str) -> tuple[str, list[batch_files.Entry]]:
    """Return the name of the file for messages, and what it holds; any fault ends the command."""
    name = name_of(file)
    return name, parsed(name, arguments.text_of(file if file == "-" else f"@{file}"))


def name_of(file: str) -> str:
    """Return what a file is called in messages."""
    return STDIN if file == "-" else file


def parsed(name: str, text: str) -> list[batch_files.Entry]:
    """Return what the text of a file holds; any fault ends the command."""
    try:
        found, wrong = batch_files.entries(batch_files.read(text))
    except batch_files.Unreadable as error:
        raise _refusal(name, [batch_files.Wrong(error.line, "", str(error))]) from error
    if wrong:
        raise _refusal(name, wrong)
    return found


def _refusal(name: str, wrong: list[batch_files.Wrong], *, queued: int = 0) -> Failure:
    """Tell every fault: on a line of its own, and to programs by its parts."""
    lines = [fault.told(name) for fault in wrong]
    faults = [{"file": name, **asdict(fault)} for fault in wrong]
    if len(lines) == 1:
        return Failure(lines[0], code=Code.USAGE, faults=faults)
    before = f"{queued} went in before" if queued else "nothing was queued"
    message = f"{name} has {len(wrong)} faults; {before}"
    return Failure(message, code=Code.USAGE, lines=lines, faults=faults)


def _submit(
    client: "Client", name: str, found: list[batch_files.Entry], *, as_json: bool
) -> "list[DagCreated | Task]":
    from overnight import OvernightError, errors
    from overnight.models.dags import DagCreate

    made: list[DagCreated | Task] = []
    for entry in found:
        try:
            if isinstance(entry.what, DagCreate):
                made.append(client.dags.create(entry.what))
            else:
                fields: dict[str, Any] = entry.what.model_dump(exclude_unset=True)
                made.append(client.tasks.create(**fields))
        except (OvernightError, KeyboardInterrupt) as error:
            if made and as_json:
                _show(made, as_json=True)
            elif made:
                output.note(f"{len(made)} of {len(found)} were queued before this:")
                _show(made, as_json=False)
            if isinstance(error, errors.InvalidRequest) and error.fields:
                wrong = [entry.wrong(one.field, one.message, one.legal) for one in error.fields]
                raise _refusal(name, wrong, queued=len(made)) from error
            raise
    return made


def _show(made: "list[DagCreated | Task]", *, as_json: bool) -> None:
    if as_json:
        output.document(_document(made))
    else:
        output.table(HEADERS, [_row(one) for one in made])


def _document(made: "list[Any]") -> dict[str, object]:
    from overnight.models.tasks import TaskResponse

    tasks = [task_output.plain(one) for one in made if isinstance(one, TaskResponse)]
    dags = [task_output.plain(one) for one in made if not isinstance(one, TaskResponse)]
    return {"dags": dags, "tasks": tasks}


def _row(one: "DagCreated | Task") -> tuple[object, ...]:
    from overnight.models.tasks import TaskResponse

    return (one.id, 1 if isinstance(one, TaskResponse) else len(one.tasks), one.title)


def simulated(
    client: "Client", name: str, found: list[batch_files.Entry], by: datetime | None
) -> "list[tuple[str, Plan]]":
    """Rehearse each graph, and all lone tasks together, as if it came alone."""
    from overnight.models.dags import DagCreate

    dags = [entry.what for entry in found if isinstance(entry.what, DagCreate)]
    lone = [
        entry.what.model_dump(exclude_unset=True)
        for entry in found
        if not isinstance(entry.what, DagCreate)
    ]
    plans = [(graph.title, client.dags.plan(graph, by_at=by)) for graph in dags]
    if lone:
        plans.append((f"{name}, lone tasks", client.plan(lone, by_at=by)))
    return plans


def _show_plans(plans: "list[tuple[str, Plan]]", *, as_json: bool) -> None:
    if as_json:
        output.document([{"title": title, **task_output.plain(plan)} for title, plan in plans])
        return
    for title, plan in plans:
        output.line(f"{title}: {forecast.verdict(plan)}")
        for note in plan.notes:
            output.note(f"Note: {note}.")
    output.note("Nothing was queued.")


def _wait(
    client: "Client", made: "list[DagCreated | Task]", timeout: float, *, as_json: bool
) -> None:
    """Wait for everything; the first that ended badly decides the exit code, after all have."""
    import time

    from overnight import errors
    from overnight.models.tasks import TaskResponse

    deadline = time.monotonic() + timeout
    ended: list[Any] = []
    bad: list[Exception] = []
    waited_for = [one.id for one in made]
    with wait_for_task.breaking_off(waited_for):
        for one in made:
            left = max(0.0, deadline - time.monotonic())
            if isinstance(one, TaskResponse):
                task = client.tasks.wait(one.id, timeout=left, check=False)
                ended.append(task)
                bad += [errors.TaskFailed(task)] if task.state != "completed" else []
            else:
                dag = client.dags.wait(one.id, timeout=left, check=False)
                ended.append(dag)
                bad += [errors.DagFailed(dag)] if dag.status != "completed" else []
            waited_for.remove(one.id)
    if as_json:
        output.document(_document(ended))
    else:
        output.table(
            ("ID", "ENDED AS", "TITLE"),
            [(one.id, getattr(one, "state", None) or one.status.value, one.title) for one in ended],
        )
    if bad:
        raise bad[0]
