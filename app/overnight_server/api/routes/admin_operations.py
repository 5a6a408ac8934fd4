"""The routes by which admins look after the deployment: workers, locks, pauses, fairness."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from overnight.errors import InvalidRequest, TaskNotFound
from overnight.models.account import DeadLetterGroup, Pause, PauseState
from overnight.models.admin import (
    DrainState,
    Fairness,
    LockReleased,
    PauseTarget,
    Pool,
    UserLock,
    Worker,
)
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.pagination import MAX_PAGE, Limit
from overnight_server.api.http.path_params import task_named
from overnight_server.api.routes.admin_keys import user_named
from overnight_server.control import pauses
from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import Target
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.insight.dead_letters import group_dead_letters
from overnight_server.insight.fairness import fairness
from overnight_server.insight.locks import list_locks
from overnight_server.insight.pauses import list_pauses
from overnight_server.insight.workers import list_pools, list_workers
from overnight_server.maintenance.locks import killing, release_lock
from overnight_server.store.statements import statement

router = APIRouter(prefix="/api/v1/admin", tags=["admin"])
LONGEST_HOURS = 31 * 24


@router.get("/workers")
def list_all_workers(
    parts: Use,
    _caller: Admin,
    offline: Annotated[bool, Query(description="Also those that left.")] = False,  # noqa: FBT002 - a query
) -> list[Worker]:
    """List the workers by pool: their slots, how many are busy, and whether they live."""
    liveness = timedelta(seconds=parts.settings.worker_liveness)
    return list_workers(parts.admin_db, liveness=liveness, offline=offline)


@router.get("/pools")
def list_all_pools(parts: Use, _caller: Admin) -> list[Pool]:
    """List the pools: whom each serves, its slots, how many are busy, and whether it is paused."""
    liveness = timedelta(seconds=parts.settings.worker_liveness)
    return list_pools(parts.admin_db, liveness=liveness)


@router.post("/workers/{worker_id}/drain")
def drain_worker(worker_id: str, parts: Use, _caller: Admin) -> DrainState:
    """Give a worker nothing new; what it runs goes on."""
    return DrainState(worker_id=drain(parts.admin_db, worker_id), draining=True)


@router.post("/workers/{worker_id}/undrain")
def undrain_worker(worker_id: str, parts: Use, _caller: Admin) -> DrainState:
    """Give a draining worker work again."""
    whole = undrain(parts.admin_db, worker_id)
    return DrainState(worker_id=whole, draining=False)


@router.get("/locks")
def list_all_locks(parts: Use, _caller: Admin, limit: Limit = MAX_PAGE) -> list[UserLock]:
    """List the locks that anybody's tasks hold, the oldest first."""
    return list_locks(parts.admin_db, limit=limit)


@router.post("/locks/{task_id}/release")
def release_locks(task_id: str, parts: Use, caller: Admin) -> LockReleased:
    """End the claim behind a task's locks: its run is killed and it goes back unspent."""
    named = task_named(task_id)
    actor = f"user:{caller.user_id}"
    with killing(parts.settings) as kill:
        released = release_lock(parts.admin_db, _owner(parts, named), named, actor=actor, kill=kill)
    return LockReleased(task_id=show_task(named), released=list(released.keys))


@router.get("/pauses")
def list_all_pauses(parts: Use, _caller: Admin) -> list[Pause]:
    """List every pause in force, the oldest first."""
    return list_pauses(parts.admin_db)


@router.post("/pause")
def pause_anything(body: PauseTarget, parts: Use, caller: Admin) -> PauseState:
    """Let nothing new start: of a user, in a pool, or with neither anywhere."""
    target = _target(parts, body)
    actor = f"user:{caller.user_id}"
    changed = pauses.pause(parts.admin_db, target, actor=actor, note=body.note)
    return PauseState(paused=True, changed=changed)


@router.post("/resume")
def resume_anything(body: PauseTarget, parts: Use, caller: Admin) -> PauseState:
    """Let work start again: of a user, in a pool, or with neither everywhere."""
    target = _target(parts, body)
    changed = pauses.resume(parts.admin_db, target, actor=f"user:{caller.user_id}")
    return PauseState(paused=False, changed=changed)


@router.get("/fairness")
def read_fairness(
    parts: Use,
    _caller: Admin,
    hours: Annotated[int, Query(ge=1, le=LONGEST_HOURS, description="Of the last hours.")] = 24,
) -> Fairness:
    """Tell who waited how long for what share of the slots, and who waits too long now."""
    liveness = timedelta(seconds=parts.settings.worker_liveness)
    return fairness(parts.admin_db, liveness=liveness, since=timedelta(hours=hours))


@router.get("/dead-letters/groups")
def list_all_groups(parts: Use, _caller: Admin, limit: Limit = MAX_PAGE) -> list[DeadLetterGroup]:
    """List the ways in which anybody's tasks fail for good, the most frequent first."""
    return group_dead_letters(parts.admin_db, limit=limit)


def _owner(parts: Parts, task_id: TaskId) -> UserId:
    row = parts.admin_db.atomically(
        lambda tx: tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
    )
    if row is None:
        raise TaskNotFound
    return UserId(row.user_id)


def _target(parts: Parts, body: PauseTarget) -> Target:
    if body.user is not None and body.pool is not None:
        raise InvalidRequest("pool", "is given beside user", legal="one of the two, or neither")
    return Target(None if body.user is None else user_named(parts, body.user), body.pool)
