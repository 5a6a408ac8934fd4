"""`overnight pause`, `resume`, `workers`, `pools` and `drain`: what may start, and where."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.account import PauseState

UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The tasks of this user.")
]
PoolOption = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="The workers of this pool.")
]
AllOption = Annotated[bool, typer.Option("--all", help="The whole deployment.")]
MeOption = Annotated[bool, typer.Option("--me", help="Your own tasks; no admin rights needed.")]
# A worker runs in the deployment; an agent runs outside and pulls its tasks.
KINDS = {"celery": "worker", "pull": "agent"}
WORKER_HEADERS = ("WORKER", "KIND", "POOL", "SLOTS", "BUSY", "STATUS", "LAST SEEN", "AGENT")
POOL_HEADERS = ("POOL", "KIND", "SERVES", "WORKERS", "SLOTS", "BUSY", "STATE")
PAUSE_HEADERS = ("PAUSED", "NAME", "SINCE", "BY", "REASON")


def pause(
    *,
    user: UserOption = None,
    pool: PoolOption = None,
    everything: AllOption = False,
    me: MeOption = False,
    note: Annotated[str, typer.Option(help="Reason; shown for tasks that wait.")] = "",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Pause a user, a pool or everything: no new task starts. Running tasks continue.

    Without an option, list what is paused.
    """
    if me:
        _check_only_me(user, pool, everything=everything)
        with connection.client(url, api_key_file) as client:
            own = client.me.pause(note=note)
        _report_own(own, "Paused your tasks.", "Your tasks were already paused.", as_json=as_json)
        return
    if user is None and pool is None and not everything:
        if note:
            raise typer.BadParameter("--note needs one of --user, --pool, --all and --me")
        with connection.client(url, api_key_file, as_admin=True) as client:
            _list_pauses(client, as_json=as_json)
        return
    _check_one_target(user, pool, everything=everything)
    with connection.client(url, api_key_file, as_admin=True) as client, _known_pools(client):
        changed = client.admin.pause(user=user, pool=pool, note=note).changed
    name = _target_text(user, pool)
    if as_json:
        _report_json(user, pool, paused=True, changed=changed)
    elif changed:
        output.line(f"Paused {name}.")
    else:
        new_note = f"; its note is now {note!r}" if note else ""
        output.note(f"{_capitalized(name)} was already paused{new_note}.")


def resume(
    *,
    user: UserOption = None,
    pool: PoolOption = None,
    everything: AllOption = False,
    me: MeOption = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Start new tasks of a user, in a pool or of the deployment again; other pauses stay."""
    from overnight_server.domain.reasons import join_names

    if me:
        _check_only_me(user, pool, everything=everything)
        with connection.client(url, api_key_file) as client:
            own = client.me.resume()
        by_admin = "An admin has paused your tasks, and only an admin can resume them."
        unchanged = by_admin if own.paused else "Your tasks were not paused."
        _report_own(own, "Resumed your tasks.", unchanged, as_json=as_json)
        return
    _check_one_target(user, pool, everything=everything)
    with connection.client(url, api_key_file, as_admin=True) as client:
        with _known_pools(client):
            changed = client.admin.resume(user=user, pool=pool).changed
        left = client.admin.pauses()
    name = _target_text(user, pool)
    if as_json:
        _report_json(user, pool, paused=False, changed=changed)
    elif changed:
        output.line(f"Resumed {name}.")
    else:
        output.note(f"{_capitalized(name)} was not paused.")
    if left and not as_json:
        names = [
            "the deployment" if other.target is None else f"{other.scope} {other.target}"
            for other in left
        ]
        output.note(f"Still paused: {join_names(names)}.")


def workers(
    *,
    offline: Annotated[bool, typer.Option("--all", help="List workers that left too.")] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the workers with their pools, slots and last heartbeats."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        workers = client.admin.workers(offline=offline)
    if as_json:
        output.document([task_output.as_document(worker) for worker in workers])
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
        for worker in workers
    ]
    optional = ("KIND", "LAST SEEN", "POOL")
    output.table(WORKER_HEADERS, rows, empty="No workers.", optional=optional)


def pools(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the pools with their users, workers and slots."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        pools = client.admin.pools()
    if as_json:
        output.document([task_output.as_document(pool) for pool in pools])
        return
    rows = [
        (
            pool.name,
            pool.kind,
            pool.serves or "all users",
            pool.workers,
            pool.slots,
            pool.busy,
            "paused" if pool.paused else "open",
        )
        for pool in pools
    ]
    output.table(POOL_HEADERS, rows, empty="No pools.", optional=("KIND", "SERVES", "WORKERS"))


def drain(
    worker: Annotated[
        str,
        typer.Argument(
            metavar="WORKER", help="Id of the worker, or a unique beginning or ending of it."
        ),
    ],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Give it new tasks again.")] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Give a worker no new tasks; its running tasks may end."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        drained = client.admin.undrain(worker) if undo else client.admin.drain(worker)
    status = "active" if undo else "draining"
    if as_json:
        output.document({"worker": drained.worker_id, "status": status})
    else:
        output.line(f"{drained.worker_id} is {status}.")


@contextmanager
def _known_pools(client: "Client") -> Iterator[None]:
    """Add the names of all pools to the failure when a pool does not exist."""
    from overnight.errors import Refused
    from overnight_server.domain.reasons import join_names

    try:
        yield
    except Refused as error:
        if error.code == "POOL_NOT_FOUND":
            names = [pool.name for pool in client.admin.pools()]
            error.add_note(
                f"The pools are {join_names(names)}." if names else "No worker has served a pool."
            )
        raise


def _list_pauses(client: "Client", *, as_json: bool) -> None:
    pauses = client.admin.pauses()
    if as_json:
        output.document([task_output.as_document(found) for found in pauses])
        return
    rows = [
        (found.scope, found.target, found.paused_at, found.paused_by, found.note)
        for found in pauses
    ]
    output.table(PAUSE_HEADERS, rows, empty="Nothing is paused.", optional=("BY", "SINCE"))


def _check_only_me(user: str | None, pool: str | None, *, everything: bool) -> None:
    if user is not None or pool is not None or everything:
        raise typer.BadParameter("--me excludes --user, --pool and --all")


def _check_one_target(user: str | None, pool: str | None, *, everything: bool) -> None:
    if (user is not None) + (pool is not None) + everything != 1:
        raise typer.BadParameter("pass one of --user NAME, --pool NAME, --all and --me")


def _target_text(user: str | None, pool: str | None) -> str:
    if user is not None:
        return f"user {user}"
    return "the deployment" if pool is None else f"pool {pool}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _report_json(user: str | None, pool: str | None, *, paused: bool, changed: bool) -> None:
    scope = "user" if user is not None else "all" if pool is None else "pool"
    output.document({"scope": scope, "target": user or pool, "paused": paused, "changed": changed})


def _report_own(own: "PauseState", changed: str, unchanged: str, *, as_json: bool) -> None:
    if as_json:
        state = {"paused": own.paused, "changed": own.changed}
        output.document({"scope": "user", "target": "me", **state})
    elif own.changed:
        output.line(changed)
    else:
        output.note(unchanged)
