"""The routes of what holds the caller's work: locks, pauses, budgets; and what it has used."""

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
)
from overnight.models.admin import UserApproval, UserLock, UserLockWait
from overnight.models.tasks import CancelResult
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.pagination import MAX_PAGE, PAGE, BeforeNumber, Limit, page_of
from overnight_server.api.http.path_params import number_cursor, task_named
from overnight_server.control import budgets, pauses
from overnight_server.control.pauses import Target
from overnight_server.insight.budgets import list_approvals
from overnight_server.insight.locks import list_lock_waits, list_locks
from overnight_server.insight.usage import list_ledger, usage
from overnight_server.insight.users import get_user
from overnight_server.store.pauses import pauses_in_force

router = APIRouter(prefix="/api/v1", tags=["holding"])
#: A pause that gives no reason.
UNSAID = PauseRequest()


@router.get("/locks", response_model=list[Lock])
def list_own_locks(parts: Use, caller: Reader, limit: Limit = MAX_PAGE) -> list[UserLock]:
    """List what the caller's running tasks hold alone, and who waits for it."""
    return list_locks(parts.db, user_id=caller.user_id, limit=limit)


@router.get("/locks/waits", response_model=list[LockWait])
def list_own_lock_waits(parts: Use, caller: Reader, limit: Limit = PAGE) -> list[UserLockWait]:
    """List the latest times that a task of the caller's had to wait for a lock."""
    return list_lock_waits(parts.db, user_id=caller.user_id, limit=limit)


@router.get("/pauses")
def list_own_pauses(parts: Use, caller: Reader) -> list[Pause]:
    """List the pauses that keep the caller's work waiting."""
    return parts.db.atomically(lambda tx: pauses_in_force(tx, caller.user_id))


@router.post("/users/me/pause")
def pause_own_work(parts: Use, caller: Writer, body: PauseRequest = UNSAID) -> PauseState:
    """Let nothing new of the caller's start; what runs goes on."""
    actor = f"user:{caller.user_id}"
    changed = pauses.pause(parts.db, Target(caller.user_id), actor=actor, note=body.note)
    return PauseState(paused=True, changed=changed)


@router.post("/users/me/resume")
def resume_own_work(parts: Use, caller: Writer) -> PauseState:
    """Let the caller's work start again; pauses that others began stay in force."""
    me = Target(caller.user_id)
    changed = pauses.resume(parts.db, me, actor=f"user:{caller.user_id}", own=True)
    # One that an operator began is not theirs to end.
    return PauseState(paused=get_user(parts.db, caller.user_id).paused, changed=changed)


@router.get("/approvals", response_model=list[Approval])
def list_own_approvals(parts: Use, caller: Reader, limit: Limit = MAX_PAGE) -> list[UserApproval]:
    """List the caller's tasks that have used up a budget and ask for more."""
    return list_approvals(parts.db, user_id=caller.user_id, limit=limit)


@router.post("/approvals/{task_id}/approve", response_model=ApprovalResult)
def approve_spending(
    task_id: str, body: ApprovalRequest, parts: Use, caller: Writer
) -> budgets.Approved:
    """Allow a task that asks so much more, and let it go on."""
    named, actor = task_named(task_id), f"user:{caller.user_id}"
    return budgets.approve(parts.db, named, body.usd, actor=actor, user_id=caller.user_id)


@router.post("/approvals/{task_id}/stop")
def stop_spending(task_id: str, parts: Use, caller: Writer) -> CancelResult:
    """End a task that asks for more money."""
    named, actor = task_named(task_id), f"user:{caller.user_id}"
    budgets.stop(parts.db, named, actor=actor, user_id=caller.user_id)
    return CancelResult(state="cancelled")


@router.get("/usage", tags=["usage"])
def read_usage(parts: Use, caller: Reader) -> Usage:
    """Tell what the caller has used: hours of this billing month, money of this night."""
    return usage(parts.db, caller.user_id)


@router.get("/usage/ledger", tags=["usage"])
def read_ledger(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[LedgerLine]:
    """List what was charged to the caller's current month and given back, the latest first."""
    found = list_ledger(parts.db, caller.user_id, before=number_cursor(before), limit=limit + 1)
    return page_of(request, response, found, limit, lambda line: line.id)
