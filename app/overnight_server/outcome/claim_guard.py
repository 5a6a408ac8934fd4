"""Acting for a claim while it is held."""

from typing import Any

from sqlalchemy import Connection, Row

from overnight.errors import StaleAttempt, TaskStopping
from overnight_server.domain.claims import Claim
from overnight_server.store.statements import statement


def hold(tx: Connection, claim: Claim) -> Row[Any]:
    """Hold the row of a running task for whoever holds its claim.

    StaleAttempt says that the claim is lost, TaskStopping that its owner has asked for a stop:
    either way there is nothing more to begin.
    """
    row = tx.execute(
        statement("lock_claimed_task"),
        {"task_id": claim.task_id, "epoch": claim.epoch, "token": claim.token},
    ).one_or_none()
    if row is None:
        raise StaleAttempt
    if row.is_stopping:
        raise TaskStopping
    return row
