"""What a user has used up: hours of the month, money of the night, and every line of it."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, select

from overnight.errors import UserNotFound
from overnight_server.domain.ids import UserId, show_task
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.models import Lane, LedgerEntry

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class NightUsageView:
    """Money of the night in which some was last spent."""

    started_at: datetime | None
    ends_at: datetime | None
    spent_usd: float
    reserved_usd: float
    limit_usd: float | None


@dataclass(frozen=True)
class UsageView:
    """Hours of this month and money of this night; a limit of None is no limit."""

    period_started_at: datetime
    resets_at: datetime
    hours_used: float
    hours_reserved: float
    hours_limit: float | None
    night: NightUsageView


@dataclass(frozen=True)
class LedgerView:
    """One line of the ledger."""

    id: int
    kind: str
    seconds: float
    task_id: str | None
    epoch: int | None
    period_started_at: datetime
    note: str | None
    recorded_at: datetime


def usage(db: Db, user_id: UserId) -> UsageView:
    """Return what a user has used of this month and this night."""

    def work(tx: Connection) -> UsageView:
        # Reading the lane first begins a month that is due, so the figures are this month's.
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
        night = NightUsageView(
            row.night_started_at,
            row.night_ends_at,
            float(row.night_spent_usd),
            float(row.night_reserved_usd),
            None if row.night_limit_usd is None else float(row.night_limit_usd),
        )
        return UsageView(
            row.cycle_started_at,
            row.resets_at,
            _hours(row.used_seconds),
            _hours(row.reserved_seconds),
            None if row.limit_seconds is None else _hours(row.limit_seconds),
            night,
        )

    return db.atomically(work)


def list_ledger(
    db: Db, user_id: UserId, *, before: int | None = None, limit: int = 50
) -> list[LedgerView]:
    """Return what was charged to a user's current month and given back, the latest first."""
    month = select(Lane.cycle_started_at).where(Lane.user_id == user_id).scalar_subquery()
    question = (
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
        question = question.where(LedgerEntry.id < before)
    rows = db.atomically(lambda tx: tx.execute(question).all())
    return [
        LedgerView(
            row.id,
            row.kind,
            float(row.seconds),
            None if row.task_id is None else show_task(row.task_id),
            row.epoch,
            row.period_started_at,
            row.note,
            row.recorded_at,
        )
        for row in rows
    ]


def _hours(seconds: int | Decimal) -> float:
    return round(float(seconds) / SECONDS_PER_HOUR, 4)
