"""What is held back: pauses of users, pools, everything or one's own work; draining workers."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection, database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import options, output

if TYPE_CHECKING:
    from overnight.models.account import PauseState
    from overnight_server.control.pauses import PauseSubject
    from overnight_server.store.db import Db

UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The tasks of this user.")
]
PoolOption = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="The workers of this pool.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Everything.")]
MeOption = Annotated[bool, typer.Option("--me", help="Your own tasks, as the API key in use may.")]
# A worker runs in the deployment; an agent runs outside and pulls its work.
KINDS = {"celery": "worker", "pull": "agent"}
WORKERS = ("WORKER", "KIND", "POOL", "SLOTS", "BUSY", "STATUS", "LAST SEEN", "AGENT")
POOLS = ("POOL", "KIND", "SERVES", "WORKERS", "SLOTS", "BUSY", "STATE")
PAUSES = ("PAUSED", "NAME", "SINCE", "BY", "WHY")


def pause(
    *,
    user: UserOption = None,
    pool: PoolOption = None,
    everything: AllOption = False,
    me: MeOption = False,
    note: Annotated[str, typer.Option(help="Why; shown to those who wait.")] = "",
    as_json: options.Json = False,
) -> None:
    """Let nothing new start for a user, in a pool or at all; what runs goes on.

    Without an option, list what is paused.
    """
    from overnight_server.control import pauses
    from overnight_server.insight.pauses import list_pauses

    if me:
        _check_alone(user, pool, everything=everything)
        with connection.client(None, None) as client:
            held = client.me.pause(note=note)
        _report_own(held, "Paused your work.", "Your work was paused already.", as_json=as_json)
        return
    if user is None and pool is None and not everything:
        if note:
            raise typer.BadParameter("--note says why one of --user, --pool and --all is paused")
        with database.opened() as db:
            found = list_pauses(db)
        if as_json:
            output.document([one.model_dump() for one in found])
            return
        rows = [(one.scope, one.target, one.paused_at, one.paused_by, one.note) for one in found]
        output.table(PAUSES, rows, empty="Nothing is paused.")
        return
    with database.opened() as db:
        target = _target(db, user, pool, everything=everything)
        begun = pauses.pause(db, target, actor=database.operator(), note=note)
    _report(
        user or pool,
        target.scope.value,
        as_json=as_json,
        paused=True,
        changed=begun,
        note=f'; its note is now "{note}"' if note else "",
    )


def resume(
    *,
    user: UserOption = None,
    pool: PoolOption = None,
    everything: AllOption = False,
    me: MeOption = False,
    as_json: options.Json = False,
) -> None:
    """End a pause; others that are in force stay."""
    from overnight_server.control import pauses
    from overnight_server.domain.reasons import listed
    from overnight_server.insight.pauses import list_pauses

    if me:
        _check_alone(user, pool, everything=everything)
        with connection.client(None, None) as client:
            held = client.me.resume()
        theirs = "An operator has paused your work, and only an operator ends that."
        same = theirs if held.paused else "Your work was not paused."
        _report_own(held, "Resumed your work.", same, as_json=as_json)
        return
    with database.opened() as db:
        target = _target(db, user, pool, everything=everything)
        ended = pauses.resume(db, target, actor=database.operator())
        left = list_pauses(db)
    _report(user or pool, target.scope.value, as_json=as_json, paused=False, changed=ended)
    if left and not as_json:
        still = listed(
            ["everything" if one.target is None else f"{one.scope} {one.target}" for one in left]
        )
        output.note(f"Still paused: {still}.")


def workers(
    *,
    everyone: Annotated[bool, typer.Option("--all", help="Those that left, too.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the workers: pool, slots, how many are busy, and when each was last seen."""
    from overnight_server.insight.workers import list_workers

    liveness = timedelta(seconds=database.settings().worker_liveness)
    with database.opened() as db:
        found = list_workers(db, liveness=liveness, offline=everyone)
    if as_json:
        output.document([worker.model_dump() for worker in found])
        return
    rows = [
        (
            worker.id,
            KINDS.get(worker.kind, worker.kind),
            worker.pool,
            worker.slots,
            worker.busy,
            worker.status,
            worker.last_seen_at,
            None if worker.owner is None else f"{worker.owner}/{worker.name}",
        )
        for worker in found
    ]
    output.table(WORKERS, rows, empty="No workers.")


def pools(*, as_json: options.Json = False) -> None:
    """List the pools: whom each serves, its workers and slots, and how many are busy."""
    from overnight_server.insight.workers import list_pools

    liveness = timedelta(seconds=database.settings().worker_liveness)
    with database.opened() as db:
        found = list_pools(db, liveness=liveness)
    if as_json:
        output.document([pool.model_dump() for pool in found])
        return
    rows = [
        (
            pool.name,
            pool.kind,
            pool.serves or "everybody",
            pool.workers,
            pool.slots,
            pool.busy,
            "paused" if pool.paused else "open",
        )
        for pool in found
    ]
    output.table(POOLS, rows, empty="No pools.")


def drain(
    worker: Annotated[
        str,
        typer.Argument(
            metavar="WORKER", help="Its id, or any beginning or ending that only it has."
        ),
    ],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    as_json: options.Json = False,
) -> None:
    """Let a worker finish what it runs and give it nothing new."""
    from overnight_server.control import drain as control

    with database.opened() as db:
        known = control.undrain(db, worker) if undo else control.drain(db, worker)
    status = "active" if undo else "draining"
    if as_json:
        output.document({"worker": known, "status": status})
    else:
        output.line(f"{known} is {status}.")


def _check_alone(user: str | None, pool: str | None, *, everything: bool) -> None:
    """Refuse to pause oneself and something else: the one asks the service, the other is ours."""
    if user is not None or pool is not None or everything:
        raise typer.BadParameter("--me goes without --user, --pool and --all")


def _report_own(held: "PauseState", changed: str, same: str, *, as_json: bool) -> None:
    if as_json:
        told = {"paused": held.paused, "changed": held.changed}
        output.document({"scope": "user", "target": "me", **told})
    elif held.changed:
        output.line(changed)
    else:
        output.note(same)


def _target(db: "Db", user: str | None, pool: str | None, *, everything: bool) -> "PauseSubject":
    from overnight_server.control.pauses import EVERYTHING, PauseSubject

    if (user is not None) + (pool is not None) + everything != 1:
        raise typer.BadParameter("name one of --user NAME, --pool NAME, --all and --me")
    if user is not None:
        return PauseSubject(user_id=users.known(db, user))
    return EVERYTHING if pool is None else PauseSubject(pool=pool)


def _report(
    name: str | None, scope: str, *, as_json: bool, paused: bool, changed: bool, note: str = ""
) -> None:
    if as_json:
        output.document({"scope": scope, "target": name, "paused": paused, "changed": changed})
        return
    what = "everything" if name is None else f"{scope} {name}"
    if changed:
        output.line(f"Paused {what}." if paused else f"Resumed {what}.")
    else:
        output.note(f"{what} was paused already{note}." if paused else f"{what} was not paused.")
