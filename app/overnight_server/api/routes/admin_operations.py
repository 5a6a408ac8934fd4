"""Admin routes for workers, pools, locks, pauses and fairness.

Only admins can call them; other callers get 404.
"""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from overnight.errors import InvalidRequest
from overnight.models.account import Pause, PauseState
from overnight.models.admin import (
    DrainState,
    Fairness,
    LockReleased,
    PauseTarget,
    Pool,
    QueueStatistics,
    StaleLocks,
    StaleLocksReleased,
    UserLock,
    UserLockWait,
    Worker,
)
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.pagination import (
    BeforeName,
    encode_name_cursor,
    name_cursor,
    paginate,
)
from overnight_server.api.http.params import parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import LONGEST_LIST, ManyLimit, find_user_id
from overnight_server.control import pauses
from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import PauseSubject
from overnight_server.domain.ids import show_task
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.fairness_report import fairness
from overnight_server.insight.locks import list_lock_waits, list_locks
from overnight_server.insight.pauses import list_pauses
from overnight_server.insight.queue_statistics import queue_statistics
from overnight_server.insight.tasks import owner_of
from overnight_server.insight.workers import list_pools, list_workers
from overnight_server.maintenance.locks import LeaseTimes, cleanup_stale, killing, release_lock

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin", tags=["admin"])
LONGEST_HOURS = 31 * 24
DAY_SECONDS = 86_400
QUARTER_SECONDS = 900
OnlyUser = Annotated[
    str | None, Query(max_length=200, description="Only tasks of this user, by id or name.")
]


@router.get("/workers")
def list_all_workers(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    _caller: Admin,
    offline: Annotated[bool, Query(description="List workers that have left too.")] = False,
    limit: ManyLimit = LONGEST_LIST,
    before: BeforeName = None,
) -> list[Worker]:
    """List the workers by pool, with their slots and their status."""
    items = list_workers(
        deps.admin_db,
        liveness=timedelta(seconds=deps.settings.worker_liveness),
        offline=offline,
        after=name_cursor(before),
        limit=limit + 1,
    )
    return paginate(request, response, items, limit, lambda worker: encode_name_cursor(worker.id))


@router.get("/pools")
def list_all_pools(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    _caller: Admin,
    limit: ManyLimit = LONGEST_LIST,
    before: BeforeName = None,
) -> list[Pool]:
    """List the pools, with their workers, slots and pauses."""
    liveness = timedelta(seconds=deps.settings.worker_liveness)
    after = name_cursor(before)
    items = list_pools(deps.admin_db, liveness=liveness, after=after, limit=limit + 1)
    return paginate(request, response, items, limit, lambda pool: encode_name_cursor(pool.name))


@router.post("/workers/{worker_id}/drain")
def drain_worker(worker_id: str, deps: Injected, _caller: Admin) -> DrainState:
    """Give a worker no new tasks; its running tasks may end."""
    return DrainState(worker_id=drain(deps.admin_db, worker_id), draining=True)


@router.post("/workers/{worker_id}/undrain")
def undrain_worker(worker_id: str, deps: Injected, _caller: Admin) -> DrainState:
    """Give a draining worker new tasks again."""
    whole = undrain(deps.admin_db, worker_id)
    return DrainState(worker_id=whole, draining=False)


@router.get("/locks")
def list_all_locks(
    *,
    deps: Injected,
    _caller: Admin,
    user: OnlyUser = None,
    project: Annotated[
        str | None, Query(max_length=200, description="Only locks of this project.")
    ] = None,
    limit: ManyLimit = LONGEST_LIST,
) -> list[UserLock]:
    """List the locks that tasks hold, oldest first."""
    owner = None if user is None else find_user_id(deps, user)
    return list_locks(deps.admin_db, user_id=owner, project=project, limit=limit)


@router.get("/locks/waits")
def list_all_lock_waits(
    deps: Injected, _caller: Admin, user: OnlyUser = None, limit: ManyLimit = LONGEST_LIST
) -> list[UserLockWait]:
    """List the latest times that a task waited for a lock, newest first."""
    owner = None if user is None else find_user_id(deps, user)
    return list_lock_waits(deps.admin_db, user_id=owner, limit=limit)


@router.post("/locks/cleanup")
def release_stale_locks(body: StaleLocks, deps: Injected, caller: Admin) -> StaleLocksReleased:
    """Release locks not renewed for `max_age_seconds`; their tasks are queued again."""
    default = deps.settings.per_user_serialization_lock_timeout_seconds
    seconds = default if body.max_age_seconds is None else body.max_age_seconds
    with killing(deps.settings) as kill:
        cleaned = cleanup_stale(
            deps.admin_db,
            max_age=timedelta(seconds=seconds),
            times=LeaseTimes.of(deps.settings),
            actor=f"user:{caller.user_id}",
            kill=kill,
            project=body.project,
        )
    return StaleLocksReleased(cleaned=cleaned, max_age_seconds=seconds)


@router.post("/locks/{task_id}/release")
def release_locks(task_id: str, deps: Injected, caller: Admin) -> LockReleased:
    """End the claim that holds a task's locks: kill the run, queue the task, spend no attempt."""
    parsed_id = parse_task_param(task_id)
    owner = owner_of(deps.admin_db, parsed_id)
    actor = f"user:{caller.user_id}"
    with killing(deps.settings) as kill:
        released = release_lock(deps.admin_db, owner, parsed_id, actor=actor, kill=kill)
    return LockReleased(task_id=show_task(parsed_id), released=list(released.keys))


@router.get("/pauses")
def list_all_pauses(deps: Injected, _caller: Admin) -> list[Pause]:
    """List every pause that is in force, oldest first."""
    return list_pauses(deps.admin_db)


@router.post("/pause")
def pause_anything(body: PauseTarget, deps: Injected, caller: Admin) -> PauseState:
    """Start no new task of a user, in a pool, or with neither field at all."""
    target = _target(deps, body)
    actor = f"user:{caller.user_id}"
    changed = pauses.pause(deps.admin_db, target, actor=actor, note=body.note)
    return PauseState(paused=True, changed=changed)


@router.post("/resume")
def resume_anything(body: PauseTarget, deps: Injected, caller: Admin) -> PauseState:
    """End the pause of a user, of a pool, or with neither field that of the deployment."""
    target = _target(deps, body)
    changed = pauses.resume(deps.admin_db, target, actor=f"user:{caller.user_id}")
    return PauseState(paused=False, changed=changed)


@router.get("/fairness")
def read_fairness(
    deps: Injected,
    _caller: Admin,
    hours: Annotated[
        int, Query(ge=1, le=LONGEST_HOURS, description="Length of the period in hours.")
    ] = 24,
    alarm_after_seconds: Annotated[
        int,
        Query(ge=1, le=DAY_SECONDS, description="Wait after which a user counts as starving."),
    ] = QUARTER_SECONDS,
) -> Fairness:
    """Return how long each user waited, which share of the slots each got, and who starves."""
    return fairness(
        deps.admin_db,
        claim_settings=ClaimSettings.from_settings(deps.settings),
        since=timedelta(hours=hours),
        starving_after=timedelta(seconds=alarm_after_seconds),
    )


@router.get("/stats")
def read_statistics(
    deps: Injected,
    _caller: Admin,
    hours: Annotated[
        int, Query(ge=1, le=LONGEST_HOURS, description="Length of the period in hours.")
    ] = 12,
) -> QueueStatistics:
    """Return what the deployment did in the last hours: tasks, waits, latency, errors, cost."""
    return queue_statistics(deps.admin_db, hours=hours)


def _target(deps: Dependencies, body: PauseTarget) -> PauseSubject:
    if body.user is not None and body.pool is not None:
        raise InvalidRequest(
            "pool", "cannot be combined with user", legal="one of the two, or neither"
        )
    return PauseSubject(None if body.user is None else find_user_id(deps, body.user), body.pool)
