"""Who may submit work, and by which keys they come in: the operator's view."""

from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from sqlalchemy import Row, select

from overnight.errors import UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PLAN_LIMITS, OnExhausted, PlanTier
from overnight_server.store.db import Db
from overnight_server.store.models import ApiKey, Lane, User
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

SECONDS_PER_HOUR = 3600
# Keys that were revoked stay listed, and a user may have revoked many.
MOST_LISTED = 1_000


@dataclass(frozen=True)
class WindowView:
    """A user's night window, and when it next opens or closes."""

    zone: str
    opens: time
    closes: time
    at_closing: str
    turns_at: datetime | None
    said: str


@dataclass(frozen=True)
class UserView:
    """One user, what the plan allows, and how much of it is in use."""

    id: str
    name: str
    plan: str
    is_admin: bool
    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours_limit: int | None
    monthly_agent_hours_used: float
    running: int
    waiting: int
    paused: bool
    window: WindowView | None
    night_budget_usd: float | None
    exceptions: list[str]
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True)
class KeyView:
    """One API key, without anything that would open a door."""

    id: str
    user: str
    name: str
    last4: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


@dataclass(frozen=True)
class Named:
    """A user who was found by name or id."""

    user_id: UserId
    is_admin: bool
    is_disabled: bool = False


def find_user(db: Db, name: str) -> UserId | None:
    """Return the user of this name, if there is one."""
    found = db.atomically(lambda tx: tx.scalar(select(User.id).where(User.name == name)))
    return None if found is None else UserId(found)


def named_user(db: Db, subject: str) -> Named | None:
    """Return the user of this id or name, if there is one; asked before anybody is served."""
    row = db.atomically(
        lambda tx: tx.execute(statement("user_called"), {"subject": subject}).one_or_none()
    )
    return None if row is None else Named(UserId(row.user_id), row.is_admin, row.is_disabled)


def get_user(db: Db, user_id: UserId) -> UserView:
    """Return one user."""
    found = list_users(db, user_id)
    if not found:
        raise UserNotFound
    return found[0]


def list_users(
    db: Db,
    user_id: UserId | None = None,
    *,
    after: str | None = None,
    limit: int | None = None,
) -> list[UserView]:
    """Return every user by name, or one; those after a name, and so many, if that is asked for."""
    question = (
        select(
            User.id,
            User.name,
            User.plan_tier,
            User.is_admin,
            User.max_concurrent_agents,
            User.max_task_duration_minutes,
            User.monthly_agent_hours_limit,
            User.max_pending,
            User.on_exhausted,
            User.night_budget_usd,
            Lane.used_seconds,
            Lane.active,
            Lane.waiting,
            Lane.paused,
            Lane.window_turns_at,
            User.window_zone,
            User.window_from,
            User.window_to,
            User.window_at_closing,
            User.created_at,
            User.disabled_at,
        )
        .join(Lane, Lane.user_id == User.id)
        .order_by(User.name)
        .limit(limit)
    )
    if user_id is not None:
        question = question.where(User.id == user_id)
    if after is not None:
        question = question.where(User.name > after)
    rows = db.atomically(lambda tx: tx.execute(question).all())
    return [
        UserView(
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
            night_budget_usd=None if row.night_budget_usd is None else float(row.night_budget_usd),
            exceptions=_exceptions(row),
            created_at=row.created_at,
            disabled_at=row.disabled_at,
        )
        for row in rows
    ]


def _exceptions(row: Row[*tuple[Any, ...]]) -> list[str]:
    """Say in which limits a user differs from the plan's template."""
    plan = PLAN_LIMITS[PlanTier(row.plan_tier)]
    hours = row.monthly_agent_hours_limit
    differs = {
        f"{row.max_concurrent_agents} at once": row.max_concurrent_agents
        != plan.max_concurrent_agents,
        f"{row.max_task_duration_minutes} min a run": row.max_task_duration_minutes
        != plan.max_task_duration_minutes,
        f"{'unlimited' if hours is None else hours} hours": hours != plan.monthly_agent_hours,
        f"{row.max_pending} waiting": row.max_pending is not None,
        "waits for hours": row.on_exhausted != OnExhausted.REJECT,
    }
    return [said for said, is_other in differs.items() if is_other]


def _window(row: Row[*tuple[Any, ...]]) -> WindowView | None:
    window = window_of(row._asdict())
    if window is None:
        return None
    return WindowView(
        zone=window.zone,
        opens=window.opens,
        closes=window.closes,
        at_closing=window.at_closing.value,
        turns_at=row.window_turns_at,
        said=str(window),
    )


def list_keys(db: Db, user_id: UserId | None = None, *, limit: int = MOST_LISTED) -> list[KeyView]:
    """Return the keys of one user or of all, newest first and no more than anyone would read."""
    question = (
        select(
            ApiKey.id,
            User.name.label("user"),
            ApiKey.name,
            ApiKey.last4,
            ApiKey.scopes,
            ApiKey.created_at,
            ApiKey.expires_at,
            ApiKey.revoked_at,
            ApiKey.last_used_at,
            ApiKey.replaced_by,
        )
        .join(User, User.id == ApiKey.user_id)
        .order_by(ApiKey.created_at.desc(), ApiKey.id)
        .limit(limit)
    )
    if user_id is not None:
        question = question.where(ApiKey.user_id == user_id)
    rows = db.atomically(lambda tx: tx.execute(question).all())
    return [KeyView(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name
