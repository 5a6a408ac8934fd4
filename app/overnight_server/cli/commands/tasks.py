"""Commands for one's own tasks: list, get, events, wait, cancel, explain, queue-status.

Admins can apply some of them to the tasks of all users, with `--all-users` or `--user`.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import completion
from overnight_server.cli.terminal import (
    life_output,
    options,
    output,
    run_history,
    short_ids,
    task_output,
    wait_for_task,
)
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.cli.terminal.task_filter import FilterOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overnight import Client, Task
    from overnight.models.admin import QueueOverview
    from overnight.models.tasks import Event

AllUsers = Annotated[
    bool, typer.Option("--all-users", help="Find the task among those of all users; for admins.")
]
EVENT_HEADERS = ("AT", "EVENT", "FROM", "RUN", "REASON")
ENDS_OF_RUNS = frozenset({"retrying", "dead_lettered", "cancelled", "pending"})
REASON_HEADERS = ("REASON", "WHY")


@options.with_option_groups
def list_(
    *,
    criteria: FilterOptions,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest number of tasks to list.")
    ] = 50,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="List the tasks of this user; for admins.")
    ] = None,
    as_json: options.Json = False,
    jsonl: options.JsonLines = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your tasks, newest first."""
    if as_json and jsonl:
        raise CommandFailure("--json and --jsonl cannot be used together", code=Code.USAGE)
    with connection.client(url, api_key_file, as_admin=user is not None) as client:
        if user is None:
            tasks = client.tasks.list(limit=limit, **criteria.criteria(client))
        else:
            tasks = client.admin.tasks(user, limit=limit, **criteria.criteria(client))
        _show_list(tasks, as_json=as_json, jsonl=jsonl)


def _show_list(tasks: "Iterable[Task]", *, as_json: bool, jsonl: bool) -> None:
    if jsonl:
        output.documents(task_output.as_document(task) for task in tasks)
    elif as_json:
        output.document([task_output.as_document(task) for task in tasks])
    else:
        rows = [task_output.row(task) for task in tasks]
        output.table(
            task_output.HEADERS,
            rows,
            empty="No tasks.",
            optional=task_output.OPTIONAL,
            wrap=False,
        )


def get(
    task: options.TaskRef,
    *,
    all_users: AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show all fields of one task, and its latest runs with their errors and tracebacks."""
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        if all_users:
            shown = client.admin.task(short_ids.resolve_of_all_users(client, task))
            attempts = client.admin.attempts(shown.id)
        else:
            shown = client.tasks.get(short_ids.resolve(client, task))
            attempts = client.tasks.attempts(shown.id)
    if as_json:
        runs = [task_output.as_document(attempt) for attempt in attempts]
        output.document({**task_output.as_document(shown), "runs": runs})
        return
    task_output.show_task(shown, as_json=False)
    run_history.show(run_history.from_attempts(attempts))


def events(
    task: options.TaskRef,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print new events too, until the task has ended.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List what happened to a task, oldest first."""
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        if follow:
            for event in client.tasks.stream(task_id):
                _show_event(event, as_json=as_json)
            return
        happened = _all_events(client, task_id)
    if as_json:
        output.document([task_output.as_document(event) for event in happened])
        return
    rows = [
        (
            output.instant_of_this_year(event.at),
            event.kind,
            event.from_state,
            event.epoch or None,
            _reason(event),
        )
        for event in happened
    ]
    output.table(EVENT_HEADERS, rows, optional=("RUN", "FROM"))


def _all_events(client: "Client", task_id: str) -> "list[Event]":
    happened: list[Event] = []
    while page := client.tasks.events(task_id, after=happened[-1].id if happened else 0):
        happened += page
    return happened


def _reason(event: "Event") -> str | None:
    """Return the error of the run that ended; an event keeps the last one while the task waits."""
    return event.reason if event.state in ENDS_OF_RUNS else None


def _show_event(event: "Event", *, as_json: bool) -> None:
    if as_json:
        output.documents([task_output.as_document(event)])
    else:
        reason = f" ({why})" if (why := _reason(event)) else ""
        output.line(f"{output.instant(event.at)}  {event.kind}{reason}")
    sys.stdout.flush()


def wait(
    task: options.TaskRef,
    *,
    timeout: options.WaitTimeout = options.TEN_MINUTES,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Wait until a task has ended; exit 5 if it did not complete, 3 after the timeout."""
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
    """Cancel a task; a running task is requested to stop."""
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        result = client.tasks.cancel(task_id)
    if as_json:
        output.document({"id": task_id, **task_output.as_document(result)})
    elif result.state == "cancelled":
        output.line(f"{task_id} cancelled")
    else:
        output.line(f"{task_id} is {result.state} and was requested to stop.")


def explain(
    task: options.TaskRef,
    *,
    all_users: AllUsers = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Print what it did or waited for in its whole life."),
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Print every reason why a task is not running, and what you can do about it."""
    if history and all_users:
        raise CommandFailure("--history and --all-users cannot be used together", code=Code.USAGE)
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        if history:
            life = client.tasks.history(short_ids.resolve(client, task))
            if as_json:
                output.document(task_output.as_document(life))
            else:
                life_output.show_life(life)
            return
        if all_users:
            explained = client.admin.explain(short_ids.resolve_of_all_users(client, task))
        else:
            explained = client.tasks.explain(short_ids.resolve(client, task))
    if as_json:
        output.document(task_output.as_document(explained))
        return
    output.record(
        {"id": explained.id, "state": explained.state, "position": explained.queue_position}
    )
    if explained.reasons:
        rows = [(reason.code, reason.message) for reason in explained.reasons]
        output.table(REASON_HEADERS, rows)
    else:
        output.line("Nothing keeps it from starting; the dispatcher will claim it next.")


def queue_status(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Show this task instead.", autocompletion=completion.task_ids
        ),
    ] = None,
    *,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Count the tasks of all users; for admins.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show how many of your tasks run and wait."""
    if all_users and task is not None:
        raise CommandFailure("--all-users and ID cannot be used together", code=Code.USAGE)
    if task is not None:
        get(task, as_json=as_json, url=url, api_key_file=api_key_file)
        return
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        if all_users:
            _show_overview(client.admin.queue(), as_json=as_json)
            return
        status = client.queue_status()
    if as_json:
        output.document(task_output.as_document(status))
        return
    output.record(
        {
            "running": f"{status.running} of {status.max_concurrent}",
            "pending": str(status.pending),
            "can start more": status.can_start_more,
            "hours used": task_output.hours_text(
                status.monthly_hours_used, status.monthly_hours_limit
            ),
            "blocked by": [blocker.message for blocker in status.held_by],
        }
    )


def _show_overview(overview: "QueueOverview", *, as_json: bool) -> None:
    """Print what waits, what runs and which locks are held in the whole deployment."""
    if as_json:
        output.document(task_output.as_document(overview))
        return
    pending, active = overview.pending, overview.active
    output.record(
        {
            "pending": f"{pending.total}, {pending.high} with high priority",
            "slots": slots_text(active.slots_used, active.slots_max),
            "by user": _counts(active.by_user),
            "by project": _counts(active.by_project),
            "locks": str(overview.user_locks.active),
        }
    )


def slots_text(used: int, most: int) -> str:
    """Return how many slots are in use.

    >>> slots_text(1, 2), slots_text(1, 0)
    ('1 of 2 in use', '1 in use, 0 available: workers are draining or gone, or the cap was lowered')
    """
    if used <= most:
        return f"{used} of {most} in use"
    return f"{used} in use, {most} available: workers are draining or gone, or the cap was lowered"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
