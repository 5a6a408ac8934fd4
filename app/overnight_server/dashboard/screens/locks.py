"""Locks: who holds what, who waits, and the waits that have ended."""

from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import Response

from overnight.errors import TaskNotFound
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import MalformedId, TaskId, parse_task
from overnight_server.insight.locks import list_lock_waits, list_locks
from overnight_server.insight.neighbours import titles_of
from overnight_server.insight.tasks import owner_of
from overnight_server.maintenance.locks import killing, release_lock

screen = Screen("locks")
MOST = 100
WAITS = 30


@screen.page("/locks")
def show_locks(visit: Visit) -> Response:
    """Show who holds what, and who waits."""
    return visit.page("locks.html", title="Locks", place="locks", **read_view(visit))


@screen.part("locks", tokens=5)
def show_locks_part(visit: Visit, _key: str) -> Markup:
    """Return all locks."""
    return visit.fragment("parts/locks.html", **read_view(visit))


@screen.page("/locks/{task_id}/release")
def ask_release(visit: Visit, task_id: str) -> Response:
    """Ask before the locks of a task are released: its run is ended."""
    _only_admins(visit)
    locks = [one for one in list_locks(visit.admin_db, limit=1_000) if one.task_id == task_id]
    if not locks:
        return visit.refused("The task holds no lock any more. Nothing was changed.", to="/locks")
    return visit.page("lock_release.html", title="Release?", place="locks", locks=locks)


@screen.act("/locks/{task_id}/release")
def release(visit: Visit, task_id: str) -> Response:
    """End the claim that holds a task's locks: kill the run, queue the task, spend no attempt."""
    _only_admins(visit)
    parsed = _parse(task_id)
    owner = owner_of(visit.admin_db, parsed)
    with killing(visit.settings) as kill:
        released = release_lock(visit.admin_db, owner, parsed, actor=visit.actor, kill=kill)
    return visit.done(f"Released {count(len(released.keys), 'lock')}.", to="/locks")


def read_view(visit: Visit) -> dict[str, Any]:
    """Return what the page shows: the user's locks; for admins, those of all users."""
    db, owner = (visit.admin_db, None) if visit.is_admin else (visit.db, visit.user_id)
    locks = list_locks(db, user_id=owner, limit=MOST)
    waits = list_lock_waits(db, user_id=owner, limit=WAITS)
    ids = {one for lock in locks for one in lock.waiting_tasks}
    ids |= {one for wait in waits for one in (wait.holder_task_id, wait.waiting_task_id)}
    return {
        "locks": locks,
        "waits": waits,
        "titles": titles_of(visit.db, visit.user_id, ids),
        "waiting": sum(lock.waiting for lock in locks),
    }


def _only_admins(visit: Visit) -> None:
    """Raise 404 for others: the acts do not exist for them."""
    if not visit.is_admin:
        raise HTTPException(404)


def _parse(text: str) -> TaskId:
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None
