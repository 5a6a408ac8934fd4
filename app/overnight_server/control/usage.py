"""Correcting a user's hours by hand: a line in the ledger, never a change of one."""

from decimal import Decimal

from sqlalchemy import Connection, insert, select

from overnight.errors import InvalidRequest, UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.models import Lane, LedgerEntry

SECONDS_PER_HOUR = 3600
# No billing month has more, however many run at once.
MOST_HOURS = 1_000_000


def adjust_hours(db: Db, user_id: UserId, hours: float, *, note: str) -> None:
    """Charge hours to the user's current month, or give some back if they are negative."""
    if not abs(hours) <= MOST_HOURS:
        raise InvalidRequest("hours", str(hours), legal=f"at most {MOST_HOURS} either way")

    def work(tx: Connection) -> None:
        # The lane first; and a month that is due begins before anything is charged to it.
        lanes.lock(tx, [user_id])
        if lanes.read(tx, user_id) is None:
            raise UserNotFound
        month = tx.scalar(select(Lane.cycle_started_at).where(Lane.user_id == user_id))
        tx.execute(
            insert(LedgerEntry).values(
                user_id=user_id,
                period_started_at=month,
                kind="adjustment",
                seconds=round(Decimal(str(hours)) * SECONDS_PER_HOUR, 3),
                note=note,
            )
        )

    db.atomically(work)
