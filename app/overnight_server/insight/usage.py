"""What a user has used: hours of the month, money of the night, storage, and each ledger line."""

from decimal import Decimal

from sqlalchemy import Connection, select

from overnight.errors import UserNotFound
from overnight.models.account import (
    ArtifactUsage,
    DayUsage,
    LedgerLine,
    NightUsage,
    TypeUsage,
    Usage,
    UsageBreakdown,
)
from overnight.models.enums import PlanTier
from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.plans import BYTES_PER_MB, storage_limit_mb
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.models import LaneRow, LedgerEntryRow
from overnight_server.store.statements import statement

SECONDS_PER_HOUR = 3600


def usage(db: Db, user_id: UserId) -> Usage:
    """Return what a user has used and stored; raise UserNotFound if unknown.

    A month, night or window that is due begins first.
    """

    def work(tx: Connection) -> Usage:
        # Reading the lane first starts a new month if one is due, so that the figures are of
        # the current month.
        if lanes.read(tx, user_id) is None:
            raise UserNotFound
        columns = (
            LaneRow.cycle_started_at,
            LaneRow.resets_at,
            LaneRow.used_seconds,
            LaneRow.reserved_seconds,
            LaneRow.limit_seconds,
            LaneRow.night_started_at,
            LaneRow.night_ends_at,
            LaneRow.night_spent_usd,
            LaneRow.night_reserved_usd,
            LaneRow.night_limit_usd,
        )
        row = tx.execute(select(*columns).where(LaneRow.user_id == user_id)).one()
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
            artifacts=_artifacts(tx, user_id),
        )

    return db.atomically(work)


def _artifacts(tx: Connection, user_id: UserId) -> ArtifactUsage:
    row = tx.execute(statement("view_artifact_usage"), {"user_id": user_id}).one()
    limit = storage_limit_mb(PlanTier(row.plan_tier), row.artifact_storage_mb)
    return ArtifactUsage(
        number=row.artifacts,
        bytes=row.bytes,
        limit_bytes=None if limit is None else limit * BYTES_PER_MB,
    )


def usage_breakdown(db: Db, user_id: UserId) -> UsageBreakdown:
    """Return the hours of a user's current month by day and by type of task."""

    def work(tx: Connection) -> UsageBreakdown:
        if lanes.read(tx, user_id) is None:
            raise UserNotFound
        params = {"user_id": user_id}
        days = tx.execute(statement("view_usage_by_day"), params)
        types = tx.execute(statement("view_usage_by_type"), params)
        return UsageBreakdown(
            days=[DayUsage(day=row.day, hours=_hours(row.seconds), runs=row.runs) for row in days],
            types=[
                TypeUsage(type=row.type, hours=_hours(row.seconds), runs=row.runs) for row in types
            ],
        )

    return db.atomically(work)


def list_ledger(
    db: Db, user_id: UserId, *, before: int | None = None, limit: int = 50
) -> list[LedgerLine]:
    """Return what was charged to the user's current month and refunded, the latest first."""
    month = select(LaneRow.cycle_started_at).where(LaneRow.user_id == user_id).scalar_subquery()
    query = (
        select(
            LedgerEntryRow.id,
            LedgerEntryRow.kind,
            LedgerEntryRow.seconds,
            LedgerEntryRow.task_id,
            LedgerEntryRow.epoch,
            LedgerEntryRow.period_started_at,
            LedgerEntryRow.note,
            LedgerEntryRow.recorded_at,
        )
        .where(LedgerEntryRow.user_id == user_id, LedgerEntryRow.period_started_at == month)
        .order_by(LedgerEntryRow.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(LedgerEntryRow.id < before)
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
