"""`overnight edit`, `retry` and `overrule`: change a task, run it again, accept its output."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import (
    arguments,
    editor,
    options,
    output,
    short_ids,
    task_output,
)
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client

# How the API shows the value of a field whose name says that it is a secret.
MASKED = "***"


def edit(
    task: options.TaskRef,
    *,
    title: Annotated[str | None, typer.Option(help="New title.")] = None,
    description: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE|-", help="New description.", parser=arguments.text_of),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=4, help="1 critical, 2 high, 3 normal, 4 low.")
    ] = None,
    priority_score: Annotated[
        int | None, typer.Option(min=0, max=100, help="Exact score; 0 is the most urgent.")
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            help="Longest duration of one run, such as 30m.",
            parser=arguments.seconds,
        ),
    ] = None,
    no_timeout: Annotated[
        bool, typer.Option("--no-timeout", help="Remove the timeout; the plan's limit applies.")
    ] = False,
    deadline: Annotated[
        datetime | None,
        typer.Option(
            metavar="DURATION|INSTANT",
            help="The task fails if it has not started by then: 8h, 07:00 (local) or "
            "2030-01-31T07:00Z.",
            parser=arguments.deadline,
        ),
    ] = None,
    no_deadline: Annotated[
        bool, typer.Option("--no-deadline", help="Remove the deadline.")
    ] = False,
    at: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="Do not start before this instant: 02:00 (local) or 2030-01-31T02:00Z.",
            parser=arguments.future_instant,
        ),
    ] = None,
    in_: Annotated[
        int | None,
        typer.Option(
            "--in",
            metavar="DURATION",
            help="Do not start before this time has passed, such as 3h.",
            parser=arguments.seconds,
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the start time any longer.")
    ] = False,
    payload: Annotated[
        dict[str, object] | None,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="New payload: a JSON object, @file, or - for stdin.",
            parser=arguments.json_object,
        ),
    ] = None,
    edit_payload: Annotated[
        bool, typer.Option("--edit", help="Open the payload in $EDITOR.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Agent profile, as it is now, for a task with one."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="New tags, which replace all tags; repeatable."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Change a task that has not started; only the given fields change.

    A task that waits for a retry can be changed too, but not its start time.
    """
    for first, is_first, second, is_second in (
        ("--timeout", timeout, "--no-timeout", no_timeout),
        ("--deadline", deadline, "--no-deadline", no_deadline),
        ("--tag", tag, "--no-tags", no_tags),
        ("--at", at, "--in", in_),
        ("--at", at, "--now", now),
        ("--in", in_, "--now", now),
        ("--payload", payload is not None, "--edit", edit_payload),
        ("--priority", priority, "--priority-score", priority_score is not None),
    ):
        if is_first and is_second:
            raise CommandFailure(f"{first} and {second} cannot be used together", code=Code.USAGE)
    if in_ is not None:
        at = datetime.now().astimezone() + timedelta(seconds=in_)
    given: dict[str, Any] = {
        "title": title,
        "description": description,
        "priority": priority,
        "priority_score": priority_score,
        "timeout_seconds": timeout,
        "deadline_at": deadline,
        "start_at": at,
        "payload": payload,
        "agent": agent,
        "tags": tag or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= {"timeout_seconds": None} if no_timeout else {}
    changes |= {"deadline_at": None} if no_deadline else {}
    changes |= {"start_at": None} if now else {}
    changes |= {"tags": []} if no_tags else {}
    if not changes and not edit_payload:
        hint = "Pass what to change, such as --priority 2; --help lists the options."
        raise CommandFailure("No change is given.", hint=hint, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        if edit_payload:
            changes["payload"] = _edited_payload(client, task_id)
        changed = client.tasks.edit(task_id, **changes)
    task_output.show_task(changed, as_json=as_json)


def retry(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of a task or a graph, a unique beginning or ending of it, or GRAPH/TASK.",
        ),
    ],
    *,
    payload: Annotated[
        dict[str, object] | None,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="New payload of the task: a JSON object, @file, or - for stdin.",
            parser=arguments.json_object,
        ),
    ] = None,
    edit_payload: Annotated[
        bool, typer.Option("--edit", help="Open the payload in $EDITOR before the retry.")
    ] = False,
    attempts: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="How many more attempts the task gets.", show_default="3"
        ),
    ] = None,
    note: Annotated[
        str | None, typer.Option(help="Reason; kept with the task's dead letter.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Run a failed or cancelled task again, with the tasks that were cancelled because of it.

    With the id of a graph, run all its failed and cancelled tasks again.
    """
    if payload is not None and edit_payload:
        raise CommandFailure("--payload and --edit cannot be used together", code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        found = short_ids.resolve_task_or_dag(client, reference)
        if not found.startswith(short_ids.DAG_PREFIX):
            if edit_payload:
                payload = _edited_payload(client, found)
            changes = None if payload is None else {"payload": payload}
            retried = client.tasks.retry(found, changes=changes, attempts=attempts, note=note)
        elif edit_payload or payload is not None or attempts is not None or note is not None:
            message = "--payload, --edit, --attempts and --note need the id of a task, not a graph"
            raise CommandFailure(message, code=Code.USAGE)
        else:
            retried = client.dags.retry(found)
    if as_json:
        output.document(task_output.as_document(retried))
        return
    output.line(found)
    watch = (
        f"overnight wait {output.shown_id(found)}"
        if retried.tasks == [found]
        else f"overnight dag show {output.shown_id(retried.dag_id)} --watch"
    )
    output.note(
        f"{task_output.count_tasks(len(retried.tasks))} will run again. Follow with `{watch}`."
    )


def overrule(
    task: options.TaskRef,
    *,
    note: Annotated[
        str | None, typer.Option(help="Reason; kept with the task's dead letter.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Complete a task with the output that a validator rejected; its dependents proceed."""
    with connection.client(url, api_key_file) as client:
        completed = client.tasks.overrule(short_ids.resolve(client, task), note=note)
    task_output.show_task(completed, as_json=as_json)


def _edited_payload(client: "Client", task_id: str) -> dict[str, object]:
    payload = client.tasks.get(task_id).payload
    if _has_masked_value(payload):
        raise CommandFailure(
            "The payload has secrets that the server does not show, so it cannot be edited here.",
            hint="Pass the whole payload with --payload, with the secrets.",
            code=Code.USAGE,
        )
    return editor.edit_object(payload)


def _has_masked_value(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_masked_value(inner) for inner in value.values())
    if isinstance(value, list):
        return any(_has_masked_value(inner) for inner in value)
    return value == MASKED
