"""Users and their API keys, for admins and for authentication."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, or_, select
from sqlalchemy.orm import aliased

from overnight.errors import UserNotFound
from overnight.models.account import Window
from overnight.models.admin import UserDetail
from overnight.models.enums import PlanTier
from overnight.models.keys import UserApiKey
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PLAN_LIMITS, OnExhausted
from overnight_server.store.db import Db
from overnight_server.store.models import ApiKeyRow, LaneRow, UserRow
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

SECONDS_PER_HOUR = 3600
# Revoked keys stay in the list, and a user may have revoked many.
MAX_KEYS = 1_000


@dataclass(frozen=True)
class UserIdentity:
    """A user's id, and what authentication needs to know about the user.

    `read_at` is the time by the database's clock, which judges whether a token is still valid.
    """

    user_id: UserId
    is_admin: bool
    is_disabled: bool
    read_at: datetime


def find_user(db: Db, name: str) -> UserId | None:
    """Return the id of the user with this name, or None."""
    user_id = db.atomically(lambda tx: tx.scalar(select(UserRow.id).where(UserRow.name == name)))
    return None if user_id is None else UserId(user_id)


def find_identity(db: Db, subject: str) -> UserIdentity | None:
    """Return the user with this id or name, or None; works before a caller is authenticated."""
    row = db.atomically(
        lambda tx: tx.execute(statement("user_by_id_or_name"), {"subject": subject}).one_or_none()
    )
    if row is None:
        return None
    return UserIdentity(UserId(row.user_id), row.is_admin, row.is_disabled, row.read_at)


def get_user(db: Db, user_id: UserId) -> UserDetail:
    """Return one user; raise UserNotFound if there is none with this id."""
    users = list_users(db, user_id)
    if not users:
        raise UserNotFound
    return users[0]


def list_users(
    db: Db,
    user_id: UserId | None = None,
    *,
    name_prefix: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[UserDetail]:
    """Return the users, ordered by name, disabled users included; with `user_id` only that user.

    A page has at most `limit` users whose names begin with `name_prefix`; it begins after the name
    `after`.
    """
    query = (
        select(
            UserRow.id,
            UserRow.name,
            UserRow.plan_tier,
            UserRow.is_admin,
            UserRow.max_concurrent_agents,
            UserRow.max_task_duration_minutes,
            UserRow.monthly_agent_hours_limit,
            UserRow.max_pending,
            UserRow.artifact_storage_mb,
            UserRow.on_exhausted,
            UserRow.night_budget_usd,
            LaneRow.used_seconds,
            LaneRow.active,
            LaneRow.waiting,
            LaneRow.paused,
            LaneRow.window_changes_at,
            UserRow.window_zone,
            UserRow.window_from,
            UserRow.window_to,
            UserRow.window_at_closing,
            UserRow.created_at,
            UserRow.disabled_at,
        )
        .join(LaneRow, LaneRow.user_id == UserRow.id)
        .order_by(UserRow.name)
        .limit(limit)
    )
    if user_id is not None:
        query = query.where(UserRow.id == user_id)
    if name_prefix is not None:
        query = query.where(UserRow.name.startswith(name_prefix, autoescape=True))
    if after is not None:
        query = query.where(UserRow.name > after)
    rows = db.atomically(lambda tx: tx.execute(query).all())
    return [
        UserDetail(
            id=str(row.id),
            name=row.name,
            plan=row.plan_tier,
            is_admin=row.is_admin,
            max_concurrent_agents=row.max_concurrent_agents,
            max_task_duration_minutes=row.max_task_duration_minutes,
            monthly_agent_hours_limit=row.monthly_agent_hours_limit,
            monthly_agent_hours_used=round(float(row.used_seconds) / SECONDS_PER_HOUR, 2),
            running=row.active,
            waiting=row.waiting,
            paused=row.paused,
            window=_window(row),
            night_budget_usd=row.night_budget_usd,
            exceptions=_exceptions(row),
            created_at=row.created_at,
            disabled_at=row.disabled_at,
        )
        for row in rows
    ]


def _exceptions(row: Row[*tuple[Any, ...]]) -> list[str]:
    """Return the limits in which a user differs from the plan."""
    plan = PLAN_LIMITS[PlanTier(row.plan_tier)]
    hours = row.monthly_agent_hours_limit
    differs = {
        f"{row.max_concurrent_agents} at once": row.max_concurrent_agents
        != plan.max_concurrent_agents,
        f"{row.max_task_duration_minutes} min a run": row.max_task_duration_minutes
        != plan.max_task_duration_minutes,
        f"{'unlimited' if hours is None else hours} hours": hours != plan.monthly_agent_hours,
        f"{row.max_pending} waiting": row.max_pending is not None,
        f"{row.artifact_storage_mb} MB stored": row.artifact_storage_mb is not None,
        "waits for hours": row.on_exhausted != OnExhausted.REJECT,
    }
    return [limit for limit, is_different in differs.items() if is_different]


def _window(row: Row[*tuple[Any, ...]]) -> Window | None:
    window = window_of(row._asdict())
    if window is None:
        return None
    return Window(
        zone=window.zone,
        opens=f"{window.opens:%H:%M}",
        closes=f"{window.closes:%H:%M}",
        at_closing=window.at_closing.value,
        turns_at=row.window_changes_at,
    )


def list_keys(
    db: Db,
    user_id: UserId | None = None,
    *,
    key_id: str | None = None,
    before: str | None = None,
    limit: int = MAX_KEYS,
) -> list[UserApiKey]:
    """Return the API keys of one user or of all, newest first, at most `limit`.

    `key_id` selects one key; `before` is a key whose place in this order the list begins after.
    """
    query = (
        select(
            ApiKeyRow.id,
            UserRow.name.label("user"),
            ApiKeyRow.name,
            ApiKeyRow.last4,
            ApiKeyRow.scopes,
            ApiKeyRow.created_at,
            ApiKeyRow.expires_at,
            ApiKeyRow.revoked_at,
            ApiKeyRow.last_used_at,
            ApiKeyRow.replaced_by,
            ApiKeyRow.made_by,
        )
        .join(UserRow, UserRow.id == ApiKeyRow.user_id)
        .order_by(ApiKeyRow.created_at.desc(), ApiKeyRow.id)
        .limit(limit)
    )
    if user_id is not None:
        query = query.where(ApiKeyRow.user_id == user_id)
    if key_id is not None:
        query = query.where(ApiKeyRow.id == key_id)
    if before is not None:
        last = aliased(ApiKeyRow)
        is_after = or_(
            ApiKeyRow.created_at < last.created_at,
            and_(ApiKeyRow.created_at == last.created_at, ApiKeyRow.id > last.id),
        )
        query = query.join(last, last.id == before).where(is_after)
    rows = db.atomically(lambda tx: tx.execute(query).mappings().all())
    return [UserApiKey(**row) for row in rows]
