"""The user's commands besides `add`: look at tasks, wait for them, cancel them, see the limits."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import all_users, completion, locks
from overnight_server.cli.terminal import options, output, short_ids, task_output, wait_for_task
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overnight import Task


def list_(
    *,
    status: Annotated[
        str | None,
        typer.Option(help="Only those in this status or state, such as pending or dead_lettered."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This user's, read from the database; for operators."),
    ] = None,
    as_json: options.Json = False,
    jsonl: options.JsonLines = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your tasks, newest first."""
    if as_json and jsonl:
        raise Failure("--json and --jsonl exclude each other", code=Code.USAGE)
    if user is not None:
        all_users.refuse_connection(url, api_key_file)
        _show_list(
            all_users.tasks_of(user, status=status, limit=limit), as_json=as_json, jsonl=jsonl
        )
        return
    with connection.client(url, api_key_file) as client:
        found = client.tasks.list(status=status, limit=limit)
        _show_list(found, as_json=as_json, jsonl=jsonl)


def _show_list(tasks: "Iterable[Task]", *, as_json: bool, jsonl: bool) -> None:
    if jsonl:
        output.documents(task_output.plain(task) for task in tasks)
    elif as_json:
        output.document([task_output.plain(task) for task in tasks])
    else:
        rows = [task_output.row(task) for task in tasks]
        output.table(task_output.HEADERS, rows, empty="No tasks.")


def get(
    task: options.TaskRef,
    *,
    for_all_users: all_users.AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one task, whole."""
    if for_all_users:
        all_users.refuse_connection(url, api_key_file)
        task_output.show_task(all_users.get(task), as_json=as_json)
        return
    with connection.client(url, api_key_file) as client:
        found = client.tasks.get(short_ids.resolve(client, task))
        task_output.show_task(found, as_json=as_json)


def wait(
    task: options.TaskRef,
    *,
    timeout: options.WaitTimeout = options.TEN_MINUTES,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Wait until a task has ended; exit 5 if it ended badly, 3 if the time ran out."""
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        wait_for_task.wait_and_show(client, task_id, timeout, as_json=as_json)


def cancel(
    task: options.TaskRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel a task; one that runs is asked to stop."""
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        answer = client.tasks.cancel(task_id)
        if as_json:
            output.document({"id": task_id, **task_output.plain(answer)})
        elif answer.state == "cancelled":
            output.line(f"{task_id} cancelled")
        else:
            output.line(f"{task_id} is {answer.state} and was asked to stop")


def limits(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show what your plan allows and how much of it is used."""
    with connection.client(url, api_key_file) as client:
        answer = client.limits()
    if as_json:
        output.document(task_output.plain(answer))
        return
    output.record(
        {
            "plan": answer.plan.value,
            "at once": task_output.tasks(answer.max_concurrent_agents),
            "longest run": f"{answer.max_task_duration_minutes} min",
            "hours used": _hours(answer.monthly_agent_hours_used, answer.monthly_agent_hours_limit),
            "hours promised": f"{answer.monthly_agent_hours_promised:.2f}, to what runs",
            "hours return": answer.billing_cycle_resets_at,
            "without hours": task_output.without_hours(answer.on_exhausted),
            "waiting": f"{answer.pending}"
            + (f" of {answer.pending_limit}" if answer.pending_limit is not None else ""),
            "may start": answer.window or "at any time",
            **task_output.night(answer),
        }
    )


def queue_status(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Show this task instead.", autocompletion=completion.task_ids
        ),
    ] = None,
    *,
    for_all_users: Annotated[
        bool,
        typer.Option("--all-users", help="Everybody's, read from the database; for operators."),
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show how much of yours runs and waits."""
    if for_all_users and task is not None:
        raise Failure("--all-users and a task exclude each other", code=Code.USAGE)
    if for_all_users:
        locks.show_all_queues(as_json=as_json)
        return
    if task is not None:
        get(task, as_json=as_json, url=url, api_key_file=api_key_file)
        return
    with connection.client(url, api_key_file) as client:
        answer = client.queue_status()
    if as_json:
        output.document(task_output.plain(answer))
        return
    output.record(
        {
            "running": f"{answer.running} of {answer.max_concurrent}",
            "pending": str(answer.pending),
            "can start more": answer.can_start_more,
            "hours used": _hours(answer.monthly_hours_used, answer.monthly_hours_limit),
            "held by": [hold.message for hold in answer.held_by],
        }
    )


def _hours(used: float, limit: float | None) -> str:
    return f"{used:.2f} of {limit:g}" if limit is not None else f"{used:.2f}, no limit"
