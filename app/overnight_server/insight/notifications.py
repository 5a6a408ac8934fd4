"""Channels of notifications and the log of their deliveries."""

from typing import Any

from sqlalchemy import Row

from overnight.errors import ChannelNotFound, DeliveryNotFound
from overnight.models.notifications import Channel, Delivery, QuietHours, ReportTime
from overnight_server.domain.ids import UserId, show_dag, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_channels(db: Db, user_id: UserId) -> list[Channel]:
    """Return a user's channels by name."""
    return _read_channels(db, user_id, None)


def get_channel(db: Db, user_id: UserId, name: str) -> Channel:
    """Return one channel; raise ChannelNotFound if the user has no such channel."""
    channels = _read_channels(db, user_id, name)
    if not channels:
        raise ChannelNotFound
    return channels[0]


def list_deliveries(
    db: Db,
    user_id: UserId,
    *,
    channel: str | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Delivery]:
    """Return a user's deliveries, the latest first; `before` is one to continue from."""
    params = {
        "user_id": user_id,
        "channel_name": channel,
        "state": state,
        "delivery_id": None,
        "before_id": before,
        "limit": limit,
    }
    rows = db.atomically(lambda tx: tx.execute(statement("list_deliveries"), params).all())
    return [_delivery(row) for row in rows]


def get_delivery(db: Db, user_id: UserId, number: int) -> Delivery:
    """Return one delivery; raise DeliveryNotFound if the user has no such delivery."""
    params = {
        "user_id": user_id,
        "channel_name": None,
        "state": None,
        "delivery_id": number,
        "before_id": None,
        "limit": 1,
    }
    row = db.atomically(lambda tx: tx.execute(statement("list_deliveries"), params).one_or_none())
    if row is None:
        raise DeliveryNotFound
    return _delivery(row)


def get_report_time(db: Db, user_id: UserId) -> ReportTime:
    """Return when a user's morning report is sent; its fields are None if it never is."""
    params = {"user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("read_report_time"), params).one_or_none())
    if row is None:
        return ReportTime()
    return ReportTime(zone=row.zone, at=f"{row.at:%H:%M}", next_at=row.next_at)


def _read_channels(db: Db, user_id: UserId, name: str | None) -> list[Channel]:
    params = {"user_id": user_id, "name": name}
    rows = db.atomically(lambda tx: tx.execute(statement("list_channels"), params).all())
    return [_channel(row) for row in rows]


def _channel(row: Row[Any]) -> Channel:
    quiet = None
    if row.quiet_zone is not None:
        quiet = QuietHours(
            zone=row.quiet_zone, begins=f"{row.quiet_from:%H:%M}", ends=f"{row.quiet_to:%H:%M}"
        )
    state = "failing" if row.failures else "active"
    return Channel(
        name=row.name,
        kind=row.kind,
        address=row.address,
        kinds=sorted(row.subscribed),
        quiet=quiet,
        digest_after=row.digest_after,
        digest_minutes=row.digest_minutes,
        state="disabled" if row.disabled_at is not None else state,
        failures=row.failures,
        blocked_until=row.blocked_until,
        open=row.open,
        dead=row.dead,
        created_at=row.created_at,
        old_secret_until=row.old_secret_until,
    )


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.id,
        channel=row.channel,
        kind=row.kind,
        subject=row.subject,
        title=row.title,
        task_id=None if row.task_id is None else show_task(row.task_id),
        dag_id=None if row.dag_id is None else show_dag(row.dag_id),
        state=row.state,
        attempts=row.attempts,
        created_at=row.created_at,
        due_at=row.due_at if row.ended_at is None else None,
        ended_at=row.ended_at,
        response_status=row.response_status,
        error=row.error,
        message=row.message,
    )
