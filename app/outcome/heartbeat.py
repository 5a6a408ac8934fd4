"""Saying "still here" for a run, and hearing whether to go on."""

import json
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from app.domain.claims import Claim
from app.faults import fault
from app.store.db import Db
from app.store.statements import statement


class Answer(StrEnum):
    """What a holder hears: go on, stop, give the task back, or you hold nothing any more."""

    CONTINUE = "continue"
    CANCEL = "cancel"
    HAND_BACK = "hand_back"
    LOST = "lost"


def heartbeat(
    db: Db, claim: Claim, *, lease: timedelta, progress: Mapping[str, object] | None = None
) -> Answer:
    """Extend the lease by `lease` from now, carry progress, and return the answer."""

    def work(tx: Connection) -> Row[Any] | None:
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
    return Answer.HAND_BACK if row.window_closed else Answer.CONTINUE
