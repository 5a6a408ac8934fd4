"""A user's queue status: how much runs and waits, and what keeps the next task from starting."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from overnight.models.account import Pause
from overnight.models.explain import Reason
from overnight.models.tasks import QueueBlock, QueueStatus
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import PauseScope
from overnight_server.domain.reasons import ReasonCode
from overnight_server.explain.explain import explain_next
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.limits import hours_used, read_limits
from overnight_server.store.db import Db
from overnight_server.store.pauses import describe_pause, pauses_in_force

NO_SLOTS = ClaimSettings(claim_ttl=timedelta(0), liveness=timedelta(0))


def queue_status(
    db: Db, user_id: UserId, claim_settings: ClaimSettings | None = None
) -> QueueStatus:
    """Return how full the user's queue is, and what keeps the next task from starting.

    Without `claim_settings` the reasons about free slots and workers are left out: for callers that
    run the task themselves. A billing month or night that is due is started. Raises UserNotFound.
    """
    # This starts a month or night that is due; the transaction below reads the tasks of all users.
    row = read_limits(db, user_id)

    def read(tx: Connection) -> tuple[list[Reason], list[Pause]]:
        reasons = explain_next(tx, user_id, claim_settings or NO_SLOTS)
        return reasons, pauses_in_force(tx, user_id)

    reasons, pauses = db.atomically(read, all_users=True)
    if claim_settings is None:
        reasons = [reason for reason in reasons if not _concerns_slots(reason)]
    return QueueStatus(
        running=row["active"],
        pending=row["waiting"],
        max_concurrent=row["max_concurrent_agents"],
        can_start_more=not reasons,
        monthly_hours_used=hours_used(row),
        monthly_hours_limit=row["monthly_agent_hours_limit"],
        held_by=[
            *_holds(row, pauses),
            *(
                QueueBlock(code=reason.code, message=reason.message)
                for reason in reasons
                if reason.code not in {ReasonCode.PAUSED, ReasonCode.WINDOW}
            ),
        ],
    )


def _concerns_slots(reason: Reason) -> bool:
    return (
        reason.code in {ReasonCode.NO_WORKER, ReasonCode.SLOTS, ReasonCode.SLOTS_MAX}
        or reason.details.get("scope") == PauseScope.POOL
        or reason.details.get("budget") == Budget.AGENT
    )


def _holds(row: dict[str, Any], pauses: list[Pause]) -> list[QueueBlock]:
    holds = [QueueBlock(code=ReasonCode.PAUSED, message=describe_pause(pause)) for pause in pauses]
    if row["window_closed"] or row["carry_over_until"] is not None:
        message = f"the night window opens at {row['window_changes_at']:%Y-%m-%d %H:%MZ}"
        if row["carry_over_until"]:
            message += "; until then only tasks that were waiting when it closed may start"
        holds.append(QueueBlock(code=ReasonCode.WINDOW, message=message))
    return holds
