"""Saying "still here" for a run, and hearing whether to go on."""

import json
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from app.domain.claims import Claim
from app.store.db import Db
from app.store.statements import statement


class Answer(StrEnum):
    """What a holder hears: go on, stop, or you hold nothing any more."""

    CONTINUE = "continue"
    CANCEL = "cancel"
    LOST = "lost"


def heartbeat(
    db: Db, claim: Claim, *, lease: timedelta, progress: Mapping[str, object] | None = None
) -> Answer:
    """Extend the lease by `lease` from now, carry progress, and return the answer."""
    row = db.atomically(
        lambda tx: tx.execute(
            statement("heartbeat"),
            {
                "task_id": claim.task_id,
                "epoch": claim.epoch,
                "token": claim.token,
                "lease": lease.total_seconds(),
                "progress": None if progress is None else json.dumps(progress),
            },
        ).one_or_none()
    )
    if row is None:
        return Answer.LOST
    return Answer.CANCEL if row.cancel_requested else Answer.CONTINUE
