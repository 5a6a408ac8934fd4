"""`overnight locks`: what tasks hold alone, who waits for it, and how to take it from a holder."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import options, output, short_ids
from overnight_server.cli.terminal.failures import Code, Failure
from overnight_server.cli.terminal.output import quoted

if TYPE_CHECKING:
    from overnight.models.admin import UserLock, UserLockWait
    from overnight_server.domain.ids import TaskId
    from overnight_server.store.db import Db

app = typer.Typer(help="Look at locks, and take them from holders that will not let go.")

HEADERS = ("USER", "KEY", "TASK", "STATE", "SINCE", "EXPIRES", "WAITING", "HOLDER")
WAITS = ("USER", "KEY", "SINCE", "UNTIL", "WAITED", "WAITING", "TASK", "BEHIND")
# In seconds; nobody holds a lock for so long.
LONGEST = 1_000_000_000
UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


@app.command("list")
def list_(
    *,
    waits: Annotated[
        bool, typer.Option("--waits", help="Who has had to wait of late, instead.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 1_000,
    as_json: options.Json = False,
) -> None:
    """List the locks that are held, oldest first."""
    from overnight_server.insight.locks import list_lock_waits, list_locks

    with database.opened() as db:
        if waits:
            _show_waits(list_lock_waits(db, limit=limit), as_json=as_json)
        else:
            _show(list_locks(db, limit=limit), as_json=as_json)


@app.command()
def check(user: UserName, *, as_json: options.Json = False) -> None:
    """Show what a user's tasks hold, and who has had to wait for it of late."""
    from overnight_server.insight.locks import list_lock_waits, list_locks

    with database.opened() as db:
        user_id = users.known(db, user)
        locks = list_locks(db, user_id=user_id)
        waits = list_lock_waits(db, user_id=user_id)
    if as_json:
        output.document(
            {
                "user": user,
                "locked": bool(locks),
                "locks": [lock.model_dump() for lock in locks],
                "waits": [wait.model_dump() for wait in waits],
            }
        )
        return
    _show(locks, as_json=False)
    if waits:
        _show_waits(waits, as_json=False)


@app.command()
def release(user: UserName, task: options.TaskRef, *, as_json: options.Json = False) -> None:
    """End the claim behind a lock: its run is killed and the task goes back unspent."""
    from overnight_server.domain.ids import show_task
    from overnight_server.maintenance.locks import killing, release_lock

    with database.opened() as db, killing(database.settings()) as kill:
        user_id = users.known(db, user)
        task_id = _resolve(db, user, task)
        released = release_lock(db, user_id, task_id, actor=database.operator(), kill=kill)
    if as_json:
        output.document(
            {"user": user, "task_id": show_task(task_id), "released": list(released.keys)}
        )
    else:
        output.line(f"{show_task(task_id)} released {', '.join(released.keys)}")
        output.note(
            "It is back in the queue and may take them again: `overnight pause"
            f" --user {quoted(user)}` keeps it there."
        )


@app.command("cleanup-stale")
def cleanup_stale(
    seconds: Annotated[
        int,
        typer.Argument(
            metavar="SECONDS", min=1, max=LONGEST, help="How long without renewal is stale."
        ),
    ],
    *,
    as_json: options.Json = False,
) -> None:
    """Take back locks that nobody renewed for so long; the reaper does it when a lease ends."""
    with database.opened() as db:
        freed = _clean(db, seconds)
    if as_json:
        output.document({"cleaned": freed, "max_age_seconds": seconds})
    else:
        output.line(f"{freed} stale {'lock' if freed == 1 else 'locks'} taken back")


@app.command("check-project")
def check_project(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project's id.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Take back a project's stale locks, and show those that are held."""
    from overnight_server.insight.locks import list_locks

    timeout = database.settings().per_user_serialization_lock_timeout_seconds
    with database.opened() as db:
        freed = _clean(db, timeout, project=project)
        locks = list_locks(db, project=project)
    if as_json:
        output.document(
            {"project": project, "cleaned": freed, "locks": [lock.model_dump() for lock in locks]}
        )
    else:
        _show(locks, as_json=False)


def show_all_queues(*, as_json: bool) -> None:
    """Print how the whole deployment stands: what waits, what runs, which locks are held."""
    from overnight_server.insight.queue_overview import queue_overview

    known = database.settings()
    with database.opened() as db:
        status = queue_overview(
            db, slots_max=known.slots_max, liveness=timedelta(seconds=known.worker_liveness)
        )
    if as_json:
        output.document(status.model_dump())
        return
    pending, active = status.pending, status.active
    output.record(
        {
            "pending": f"{pending.total}, {pending.high} of them high",
            "slots": _slots(active.slots_used, active.slots_max),
            "by user": _counts(active.by_user),
            "by project": _counts(active.by_project),
            "locks": str(status.user_locks.active),
        }
    )


def _slots(used: int, most: int) -> str:
    """Say how many slots are in use.

    >>> _slots(1, 2), _slots(1, 0)
    ('1 of 2 in use', '1 in use, 0 offered: workers drain or are gone, or the cap was lowered')
    """
    if used <= most:
        return f"{used} of {most} in use"
    return f"{used} in use, {most} offered: workers drain or are gone, or the cap was lowered"


def _counts(of: "Mapping[str, int]") -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(of.items()))


def _clean(db: "Db", seconds: float, *, project: str | None = None) -> int:
    from overnight_server.maintenance.locks import LeaseTimes, killing
    from overnight_server.maintenance.locks import cleanup_stale as clean

    known = database.settings()
    with killing(known) as kill:
        return clean(
            db,
            max_age=timedelta(seconds=seconds),
            times=LeaseTimes.of(known),
            actor=database.operator(),
            kill=kill,
            project=project,
        )


def _resolve(db: "Db", user: str, given: str) -> "TaskId":
    """Return the task a person means: a whole id, or what only one of the user's holders has."""
    from overnight_server.domain.ids import MalformedId, parse_task
    from overnight_server.insight.locks import list_locks

    if short_ids.is_whole(given):
        try:
            return parse_task(short_ids.whole(given))
        except MalformedId as error:
            raise Failure(str(error), code=Code.USAGE) from error
    holders = {lock.task_id for lock in list_locks(db, user_id=users.known(db, user))}
    return parse_task(short_ids.choose(given, sorted(holders), among="tasks that hold a lock"))


def _show(locks: "Sequence[UserLock]", *, as_json: bool) -> None:
    if as_json:
        output.document([lock.model_dump() for lock in locks])
        return
    rows = [
        (
            lock.user,
            lock.key,
            lock.task_id,
            lock.state,
            lock.acquired_at,
            lock.expires_at,
            lock.waiting,
            lock.holder,
        )
        for lock in locks
    ]
    output.table(HEADERS, rows, empty="No locks are held.")


def _show_waits(waits: "Sequence[UserLockWait]", *, as_json: bool) -> None:
    if as_json:
        output.document([wait.model_dump() for wait in waits])
        return
    rows = [
        (
            wait.user,
            wait.key,
            wait.since,
            wait.until,
            f"{wait.waited_seconds:.0f} s",
            wait.waiting,
            wait.waiting_task_id,
            wait.holder_task_id,
        )
        for wait in waits
    ]
    output.table(WAITS, rows, empty="Nobody has had to wait.")
