"""Lock a running task for the holder of its claim."""

from typing import Any

from sqlalchemy import Connection, Row

from overnight.errors import StaleAttempt, TaskStopping
from overnight_server.domain.claims import Claim
from overnight_server.store.statements import statement


def lock_claimed_task(tx: Connection, claim: Claim) -> Row[Any]:
    """Lock the row of a running task if the claim is still held, and return the row.

    Raises StaleAttempt if the claim has ended, and TaskStopping if a stop was requested.
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
