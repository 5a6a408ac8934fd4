"""What a user has used: hours of the billing month, money of the night, and each ledger line."""

from decimal import Decimal

from sqlalchemy import Connection, select

from overnight.errors import UserNotFound
from overnight.models.account import LedgerLine, NightUsage, Usage
from overnight_server.domain.ids import UserId, show_task
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.models import Lane, LedgerEntry

SECONDS_PER_HOUR = 3600


def usage(db: Db, user_id: UserId) -> Usage:
    """Return what a user has used of this month and this night; raise UserNotFound if unknown."""

    def work(tx: Connection) -> Usage:
        # Reading the lane first starts a new month if one is due, so that the figures are of
        # the current month.
        if lanes.read(tx, user_id) is None:
            raise UserNotFound
        columns = (
            Lane.cycle_started_at,
            Lane.resets_at,
            Lane.used_seconds,
            Lane.reserved_seconds,
            Lane.limit_seconds,
            Lane.night_started_at,
            Lane.night_ends_at,
            Lane.night_spent_usd,
            Lane.night_reserved_usd,
            Lane.night_limit_usd,
        )
        row = tx.execute(select(*columns).where(Lane.user_id == user_id)).one()
        return Usage(
            period_started_at=row.cycle_started_at,
            resets_at=row.resets_at,
            hours_used=_hours(row.used_seconds),
            hours_reserved=_hours(row.reserved_seconds),
            hours_limit=None if row.limit_seconds is None else _hours(row.limit_seconds),
            night=NightUsage(
                started_at=row.night_started_at,
                ends_at=row.night_ends_at,
                spent_usd=float(row.night_spent_usd),
                reserved_usd=float(row.night_reserved_usd),
                limit_usd=None if row.night_limit_usd is None else float(row.night_limit_usd),
            ),
        )

    return db.atomically(work)


def list_ledger(
    db: Db, user_id: UserId, *, before: int | None = None, limit: int = 50
) -> list[LedgerLine]:
    """Return what was charged to the user's current month and refunded, the latest first."""
    month = select(Lane.cycle_started_at).where(Lane.user_id == user_id).scalar_subquery()
    query = (
        select(
            LedgerEntry.id,
            LedgerEntry.kind,
            LedgerEntry.seconds,
            LedgerEntry.task_id,
            LedgerEntry.epoch,
            LedgerEntry.period_started_at,
            LedgerEntry.note,
            LedgerEntry.recorded_at,
        )
        .where(LedgerEntry.user_id == user_id, LedgerEntry.period_started_at == month)
        .order_by(LedgerEntry.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(LedgerEntry.id < before)
    rows = db.atomically(lambda tx: tx.execute(query).mappings().all())
    return [
        LedgerLine(
            **{
                **row,
                "task_id": None if row["task_id"] is None else show_task(row["task_id"]),
            }
        )
        for row in rows
    ]


def _hours(seconds: int | Decimal) -> float:
    return round(float(seconds) / SECONDS_PER_HOUR, 4)
