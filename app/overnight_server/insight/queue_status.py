"""A user's queue status: how much runs and waits, and what keeps the next task from starting."""

from datetime import timedelta

from overnight.models.explain import Reason
from overnight.models.tasks import QueueBlock, QueueStatus
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import PauseScope
from overnight_server.domain.reasons import ReasonCode
from overnight_server.explain.audience import OWNER, Audience
from overnight_server.explain.explain import explain_next
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.limits import hours_used, read_limits
from overnight_server.store.db import Db

NO_SLOTS = ClaimSettings(claim_ttl=timedelta(0), liveness=timedelta(0))


def queue_status(
    db: Db,
    user_id: UserId,
    claim_settings: ClaimSettings | None = None,
    audience: Audience = OWNER,
) -> QueueStatus:
    """Return how full the user's queue is, and what keeps the next task from starting.

    Without `claim_settings` the reasons about free slots and workers are left out: for callers that
    run the task themselves. The reasons are in the order of `explain`, and their advice is for
    `audience`. A billing month or night that is due is started. Raises UserNotFound.
    """
    # This starts a month or night that is due; the transaction below reads the tasks of all users.
    row = read_limits(db, user_id)

    reasons = db.atomically(
        lambda tx: explain_next(tx, user_id, claim_settings or NO_SLOTS, audience), all_users=True
    )
    if claim_settings is None:
        reasons = [reason for reason in reasons if not _concerns_slots(reason)]
    return QueueStatus(
        running=row["active"],
        pending=row["waiting"],
        max_concurrent=row["max_concurrent_agents"],
        can_start_more=not reasons,
        monthly_hours_used=hours_used(row),
        monthly_hours_limit=row["monthly_agent_hours_limit"],
        held_by=[QueueBlock(code=reason.code, message=reason.message) for reason in reasons],
    )


def _concerns_slots(reason: Reason) -> bool:
    return (
        reason.code in {ReasonCode.NO_WORKER, ReasonCode.SLOTS, ReasonCode.SLOTS_MAX}
        or reason.details.get("scope") == PauseScope.POOL
        or reason.details.get("budget") == Budget.AGENT
    )
