"""Correct a user's used hours by an additional ledger entry."""

from decimal import Decimal

from sqlalchemy import Connection, insert, select

from overnight.errors import InvalidRequest, UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.models import LaneRow, LedgerEntryRow
from overnight_server.store.statements import statement

SECONDS_PER_HOUR = 3600
# The largest correction; no billing month uses more hours.
MAX_HOURS = 1_000_000


def adjust_hours(
    db: Db, user_id: UserId, hours: float, *, note: str, actor: str = "operator"
) -> None:
    """Charge hours to the user's current billing month; negative hours are given back.

    The ledger keeps the note, and the audit log keeps who did it. Locks the lane; a trigger adds
    the hours to it. A billing month that is due is started first, and the dispatchers are woken.
    Raises InvalidRequest for more than a million hours, UserNotFound for an unknown user.
    """
    if not abs(hours) <= MAX_HOURS:
        raise InvalidRequest("hours", str(hours), legal=f"-{MAX_HOURS} to {MAX_HOURS}")

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        # Reading the lane starts a billing month that is due, before anything is charged to it.
        lanes.lock(tx, [user_id])
        if lanes.read(tx, user_id) is None:
            raise UserNotFound
        month = tx.scalar(select(LaneRow.cycle_started_at).where(LaneRow.user_id == user_id))
        tx.execute(
            insert(LedgerEntryRow).values(
                user_id=user_id,
                period_started_at=month,
                kind="adjustment",
                seconds=round(Decimal(str(hours)) * SECONDS_PER_HOUR, 3),
                note=note,
            )
        )

    db.atomically(work)
    db.wake()
