"""Routes of the caller's locks, pauses, budget approvals and usage."""

from fastapi import APIRouter, Request, Response

from overnight.models.account import (
    Approval,
    ApprovalRequest,
    ApprovalResult,
    LedgerLine,
    Lock,
    LockWait,
    Pause,
    PauseRequest,
    PauseState,
    Usage,
    UsageBreakdown,
)
from overnight.models.admin import UserApproval, UserLock, UserLockWait
from overnight.models.tasks import CancelResult
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    MAX_PAGE,
    PAGE,
    BeforeNumber,
    Limit,
    number_cursor,
    paginate,
)
from overnight_server.api.http.params import parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.control import budgets, pauses
from overnight_server.control.pauses import PauseSubject
from overnight_server.insight.budgets import list_approvals
from overnight_server.insight.locks import list_lock_waits, list_locks
from overnight_server.insight.usage import list_ledger, usage, usage_breakdown
from overnight_server.insight.users import get_user
from overnight_server.store.pauses import pauses_in_force

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1")
WITHOUT_NOTE = PauseRequest()


@router.get("/locks", response_model=list[Lock], tags=["locks"])
def list_own_locks(deps: Injected, caller: Reader, limit: Limit = MAX_PAGE) -> list[UserLock]:
    """List the locks that the caller's running tasks hold, and the tasks that wait for them."""
    return list_locks(deps.db, user_id=caller.user_id, limit=limit)


@router.get("/locks/waits", response_model=list[LockWait], tags=["locks"])
def list_own_lock_waits(deps: Injected, caller: Reader, limit: Limit = PAGE) -> list[UserLockWait]:
    """List the latest waits of the caller's tasks for a lock."""
    return list_lock_waits(deps.db, user_id=caller.user_id, limit=limit)


@router.get("/pauses", tags=["pauses"])
def list_own_pauses(deps: Injected, caller: Reader) -> list[Pause]:
    """List the pauses that keep the caller's tasks waiting."""
    return deps.db.atomically(lambda tx: pauses_in_force(tx, caller.user_id))


@router.post("/users/me/pause", tags=["pauses"])
def pause_own_work(deps: Injected, caller: Writer, body: PauseRequest = WITHOUT_NOTE) -> PauseState:
    """Pause the caller: no new task of the caller starts; running tasks continue."""
    actor = f"user:{caller.user_id}"
    changed = pauses.pause(deps.db, PauseSubject(caller.user_id), actor=actor, note=body.note)
    return PauseState(paused=True, changed=changed)


@router.post("/users/me/resume", tags=["pauses"])
def resume_own_work(deps: Injected, caller: Writer) -> PauseState:
    """End the caller's own pause; pauses that an operator began stay in force."""
    target = PauseSubject(caller.user_id)
    changed = pauses.resume(deps.db, target, actor=f"user:{caller.user_id}", own=True)
    # An operator's pause of this user is still in force.
    return PauseState(paused=get_user(deps.db, caller.user_id).paused, changed=changed)


@router.get("/approvals", response_model=list[Approval], tags=["approvals"])
def list_own_approvals(
    deps: Injected, caller: Reader, limit: Limit = MAX_PAGE
) -> list[UserApproval]:
    """List the caller's tasks that have used up a budget and wait for approval of more."""
    return list_approvals(deps.db, user_id=caller.user_id, limit=limit)


@router.post("/approvals/{task_id}/approve", response_model=ApprovalResult, tags=["approvals"])
def approve_spending(
    task_id: str, body: ApprovalRequest, deps: Injected, caller: Writer
) -> budgets.RaisedBudget:
    """Raise the used-up budget of a task by an amount, and let the task continue.

    A budget that an operator set can be raised by operators only.
    """
    return budgets.approve(
        deps.db,
        parse_task_param(task_id),
        body.usd,
        actor=caller.actor,
        user_id=caller.user_id,
        is_operator=caller.is_operator,
    )


@router.post("/approvals/{task_id}/stop", tags=["approvals"])
def stop_spending(task_id: str, deps: Injected, caller: Writer) -> CancelResult:
    """Cancel a task that waits for approval of a larger budget."""
    parsed_id, actor = parse_task_param(task_id), f"user:{caller.user_id}"
    budgets.stop(deps.db, parsed_id, actor=actor, user_id=caller.user_id)
    return CancelResult(state="cancelled")


@router.get("/usage", tags=["usage"])
def read_usage(deps: Injected, caller: Reader) -> Usage:
    """Return what the caller has used: hours of this billing month, money of this night."""
    return usage(deps.db, caller.user_id)


@router.get("/usage/breakdown", tags=["usage"])
@expensive
def read_usage_breakdown(deps: Injected, caller: Reader) -> UsageBreakdown:
    """Return the caller's hours of this billing month by day and by type of task."""
    return usage_breakdown(deps.db, caller.user_id)


@router.get("/usage/ledger", tags=["usage"])
def read_ledger(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[LedgerLine]:
    """List what was charged to the caller's current month and refunded, the latest first."""
    lines = list_ledger(deps.db, caller.user_id, before=number_cursor(before), limit=limit + 1)
    return paginate(request, response, lines, limit, lambda line: line.id)
