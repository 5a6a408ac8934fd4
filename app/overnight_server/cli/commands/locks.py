"""`overnight locks`: list the locks that tasks hold and release them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.admin import UserLock, UserLockWait

app = typer.Typer(help="List the locks that tasks hold, and release them.", no_args_is_help=True)

HEADERS = ("TASK", "USER", "STATE", "SINCE", "EXPIRES", "WAITING", "HOLDER", "KEY")
OPTIONAL = ("HOLDER", "EXPIRES", "WAITING", "STATE")
WAIT_HEADERS = ("TASK", "BEHIND", "USER", "SINCE", "UNTIL", "WAITED", "WAITING", "KEY")
WAIT_OPTIONAL = ("UNTIL", "WAITING", "SINCE")
# In seconds; longer than any lock is held.
LONGEST = 1_000_000_000
UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


@app.command("list")
def list_(
    *,
    waits: Annotated[
        bool, typer.Option("--waits", help="List recent waits for locks instead.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of locks to list.")
    ] = 1000,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the locks that tasks hold, oldest first."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        if waits:
            _show_waits(client.admin.lock_waits(limit=limit), as_json=as_json)
        else:
            _show(client.admin.locks(limit=limit), as_json=as_json)


@app.command()
def check(
    user: UserName,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show the locks that a user's tasks hold, and recent waits for them."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        locks = client.admin.locks(user=user)
        waits = client.admin.lock_waits(user=user, limit=50)
    if as_json:
        output.document(
            {
                "user": user,
                "locked": bool(locks),
                "locks": [task_output.as_document(lock) for lock in locks],
                "waits": [task_output.as_document(wait) for wait in waits],
            }
        )
        return
    _show(locks, as_json=False)
    if waits:
        _show_waits(waits, as_json=False)


@app.command()
def release(
    user: UserName,
    task: options.TaskRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Release the locks of a task: kill its run and return the task to the queue.

    The run spends no attempt.
    """
    with connection.client(url, api_key_file, as_admin=True) as client:
        released = client.admin.release_locks(_resolve(client, user, task))
    if as_json:
        output.document({"user": user, **task_output.as_document(released)})
    else:
        output.line(f"{released.task_id} released {', '.join(released.released)}")
        output.note(
            "The task is queued again and may take the locks again; prevent that with"
            f" `overnight pause --user {output.quoted(user)}`."
        )


@app.command("cleanup-stale")
def cleanup_stale(
    seconds: Annotated[
        int,
        typer.Argument(
            metavar="SECONDS", min=1, max=LONGEST, help="Time without renewal that is stale."
        ),
    ],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Release locks not renewed for SECONDS; the reaper releases locks when their lease ends."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        released = client.admin.release_stale_locks(max_age_seconds=seconds)
    if as_json:
        output.document({"cleaned": released.cleaned, "max_age_seconds": seconds})
    else:
        noun = "lock" if released.cleaned == 1 else "locks"
        output.line(f"Released {released.cleaned} stale {noun}.")


@app.command("check-project")
def check_project(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Id of the project.")],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Release a project's stale locks, and show the locks that are held."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        released = client.admin.release_stale_locks(project=project)
        locks = client.admin.locks(project=project)
    if as_json:
        held = [task_output.as_document(lock) for lock in locks]
        output.document({"project": project, "cleaned": released.cleaned, "locks": held})
    else:
        _show(locks, as_json=False)


def _resolve(client: "Client", user: str, reference: str) -> str:
    """Return the id of the user's task that `reference` identifies and that holds a lock."""
    holders = sorted({lock.task_id for lock in client.admin.locks(user=user)})
    if short_ids.is_whole(reference) and short_ids.whole(reference) not in holders:
        message = f"{short_ids.whole(reference)} holds no lock of {user}."
        raise CommandFailure(message, hint="`overnight locks list` shows all locks.")
    return short_ids.choose(reference, holders, among="task with a lock")


def _show(locks: "Sequence[UserLock]", *, as_json: bool) -> None:
    if as_json:
        output.document([task_output.as_document(lock) for lock in locks])
        return
    rows = [
        (
            output.Id(lock.task_id),
            lock.user,
            lock.state,
            lock.acquired_at,
            lock.expires_at,
            lock.waiting,
            lock.holder,
            lock.key,
        )
        for lock in locks
    ]
    output.table(HEADERS, rows, empty="No locks are held.", optional=OPTIONAL)


def _show_waits(waits: "Sequence[UserLockWait]", *, as_json: bool) -> None:
    if as_json:
        output.document([task_output.as_document(wait) for wait in waits])
        return
    rows = [
        (
            output.Id(wait.waiting_task_id),
            output.Id(wait.holder_task_id),
            wait.user,
            wait.since,
            wait.until,
            output.duration(wait.waited_seconds),
            wait.waiting,
            wait.key,
        )
        for wait in waits
    ]
    output.table(WAIT_HEADERS, rows, empty="No task has waited for a lock.", optional=WAIT_OPTIONAL)
