"""Admin routes of the whole deployment: workers, pools, locks, pauses, fairness."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from overnight.errors import InvalidRequest
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
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.pagination import MAX_PAGE, Limit
from overnight_server.api.http.params import parse_task_param
from overnight_server.api.routes.admin_keys import find_user_id
from overnight_server.control import pauses
from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import PauseSubject
from overnight_server.domain.ids import show_task
from overnight_server.insight.dead_letters import group_dead_letters
from overnight_server.insight.fairness import fairness
from overnight_server.insight.locks import list_locks
from overnight_server.insight.pauses import list_pauses
from overnight_server.insight.tasks import owner_of
from overnight_server.insight.workers import list_pools, list_workers
from overnight_server.maintenance.locks import killing, release_lock

router = APIRouter(prefix="/api/v1/admin", tags=["admin"])
MAX_HOURS = 31 * 24


@router.get("/workers")
def list_all_workers(
    deps: Injected,
    _caller: Admin,
    offline: Annotated[bool, Query(description="Include workers that have left.")] = False,  # noqa: FBT002 - a query
) -> list[Worker]:
    """List the workers by pool: their slots, how many are busy, and their status."""
    liveness = timedelta(seconds=deps.settings.worker_liveness)
    return list_workers(deps.admin_db, liveness=liveness, offline=offline)


@router.get("/pools")
def list_all_pools(deps: Injected, _caller: Admin) -> list[Pool]:
    """List the pools: the user each serves, its slots, how many are busy, if it is paused."""
    liveness = timedelta(seconds=deps.settings.worker_liveness)
    return list_pools(deps.admin_db, liveness=liveness)


@router.post("/workers/{worker_id}/drain")
def drain_worker(worker_id: str, deps: Injected, _caller: Admin) -> DrainState:
    """Drain a worker: it gets no new tasks and finishes those it runs."""
    return DrainState(worker_id=drain(deps.admin_db, worker_id), draining=True)


@router.post("/workers/{worker_id}/undrain")
def undrain_worker(worker_id: str, deps: Injected, _caller: Admin) -> DrainState:
    """End the draining of a worker, so that it gets new tasks again."""
    full_id = undrain(deps.admin_db, worker_id)
    return DrainState(worker_id=full_id, draining=False)


@router.get("/locks")
def list_all_locks(deps: Injected, _caller: Admin, limit: Limit = MAX_PAGE) -> list[UserLock]:
    """List the locks that tasks of all users hold, the oldest first."""
    return list_locks(deps.admin_db, limit=limit)


@router.post("/locks/{task_id}/release")
def release_locks(task_id: str, deps: Injected, caller: Admin) -> LockReleased:
    """Release a task's locks: its run is killed and it becomes ready again, no attempt spent."""
    parsed_id = parse_task_param(task_id)
    actor = f"user:{caller.user_id}"
    with killing(deps.settings) as kill:
        released = release_lock(
            deps.admin_db, owner_of(deps.admin_db, parsed_id), parsed_id, actor=actor, kill=kill
        )
    return LockReleased(task_id=show_task(parsed_id), released=list(released.keys))


@router.get("/pauses")
def list_all_pauses(deps: Injected, _caller: Admin) -> list[Pause]:
    """List every pause in force, the oldest first."""
    return list_pauses(deps.admin_db)


@router.post("/pause")
def pause_anything(body: PauseTarget, deps: Injected, caller: Admin) -> PauseState:
    """Pause a user, a pool, or with neither everything: nothing new starts."""
    target = _target(deps, body)
    actor = f"user:{caller.user_id}"
    changed = pauses.pause(deps.admin_db, target, actor=actor, note=body.note)
    return PauseState(paused=True, changed=changed)


@router.post("/resume")
def resume_anything(body: PauseTarget, deps: Injected, caller: Admin) -> PauseState:
    """End the pause of a user, of a pool, or with neither the pause of everything."""
    target = _target(deps, body)
    changed = pauses.resume(deps.admin_db, target, actor=f"user:{caller.user_id}")
    return PauseState(paused=False, changed=changed)


@router.get("/fairness")
def read_fairness(
    deps: Injected,
    _caller: Admin,
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS, description="Hours up to now.")] = 24,
) -> Fairness:
    """Return how long each user waited, what share of the slots each got, and who starves."""
    liveness = timedelta(seconds=deps.settings.worker_liveness)
    return fairness(deps.admin_db, liveness=liveness, since=timedelta(hours=hours))


@router.get("/dead-letters/groups")
def list_all_groups(
    deps: Injected, _caller: Admin, limit: Limit = MAX_PAGE
) -> list[DeadLetterGroup]:
    """List the open dead letters of all users, grouped by fingerprint, largest group first."""
    return group_dead_letters(deps.admin_db, limit=limit)


def _target(deps: Dependencies, body: PauseTarget) -> PauseSubject:
    if body.user is not None and body.pool is not None:
        raise InvalidRequest(
            "pool", "cannot be combined with user", legal="one of the two, or neither"
        )
    return PauseSubject(None if body.user is None else find_user_id(deps, body.user), body.pool)
