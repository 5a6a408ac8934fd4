"""Heartbeats: extend the lease of a run, and read whether the run should go on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import UserId
from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


class HeartbeatAnswer(StrEnum):
    """What the holder of a claim must do next.

    Go on; stop because of a cancel; stop because a budget is used up; give the task back because
    the night window closed; or stop because the claim is lost.
    """

    CONTINUE = "continue"
    CANCEL = "cancel"
    BUDGET = "budget"
    HAND_BACK = "hand_back"
    LOST = "lost"


@dataclass(frozen=True)
class CostSoFar:
    """What a run has cost so far, and which user pays."""

    user_id: UserId
    usd: float


def heartbeat(
    db: Db,
    claim: Claim,
    *,
    lease: timedelta,
    progress: Mapping[str, object] | None = None,
    cost: CostSoFar | None = None,
) -> HeartbeatAnswer:
    """Set the end of the lease to `lease` from now, record progress and cost, return the answer."""

    def work(tx: Connection) -> Row[Any] | None:
        if cost is not None:
            _record_cost(tx, claim, cost)
        extended = tx.execute(
            statement("heartbeat"),
            {
                "task_id": claim.task_id,
                "epoch": claim.epoch,
                "token": claim.token,
                "lease": lease.total_seconds(),
                "progress": None if progress is None else json.dumps(progress),
            },
        )
        fault("heartbeat.before_commit")
        return extended.one_or_none()

    row = db.atomically(work)
    fault("heartbeat.after_commit")
    if row is None:
        return HeartbeatAnswer.LOST
    if row.cancel_requested:
        return HeartbeatAnswer.CANCEL
    if row.exhausted_budget:
        return HeartbeatAnswer.BUDGET
    return HeartbeatAnswer.HAND_BACK if row.window_closed else HeartbeatAnswer.CONTINUE


def _record_cost(tx: Connection, claim: Claim, cost: CostSoFar) -> None:
    # Costs are counted on the user and the graph, so the lane is locked before the task.
    lanes.lock(tx, [cost.user_id])
    lanes.end_nights(tx, [cost.user_id])
    tx.execute(
        statement("record_run_cost"),
        {
            "task_id": claim.task_id,
            "epoch": claim.epoch,
            "token": claim.token,
            "usd": cost.usd,
        },
    )
