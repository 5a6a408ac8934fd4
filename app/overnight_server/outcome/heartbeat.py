"""Saying "still here" for a run, and hearing whether to go on."""

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


class Answer(StrEnum):
    """What a holder hears: go on, stop, ask for money, give it back, or you hold nothing more."""

    CONTINUE = "continue"
    CANCEL = "cancel"
    BUDGET = "budget"
    HAND_BACK = "hand_back"
    LOST = "lost"


@dataclass(frozen=True)
class Cost:
    """What a run has cost so far, and whose money it is."""

    user_id: UserId
    usd: float


def heartbeat(
    db: Db,
    claim: Claim,
    *,
    lease: timedelta,
    progress: Mapping[str, object] | None = None,
    cost: Cost | None = None,
) -> Answer:
    """Extend the lease by `lease` from now, carry progress and cost, and return the answer."""

    def work(tx: Connection) -> Row[Any] | None:
        if cost is not None:
            _note(tx, claim, cost)
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
        return Answer.LOST
    if row.cancel_requested:
        return Answer.CANCEL
    if row.used_up:
        return Answer.BUDGET
    return Answer.HAND_BACK if row.window_closed else Answer.CONTINUE


def _note(tx: Connection, claim: Claim, cost: Cost) -> None:
    # Money is counted with the user and the graph, so the lane comes first, like everywhere.
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
