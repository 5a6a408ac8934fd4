"""Users, their lanes and their keys."""

from datetime import datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Interval, SmallInteger

from overnight_server.domain.plans import OnExhausted, PlanTier
from overnight_server.domain.windows import AtClosing
from overnight_server.store.models.base import EMPTY_ARRAY, USD, Base, words


class User(Base):
    """Someone who submits work; the columns, not the plan's template, rule at run time."""

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint(f"plan_tier IN ({words(PlanTier)})", name="users_plan_tier_known"),
        CheckConstraint(f"on_exhausted IN ({words(OnExhausted)})", name="users_on_exhausted_known"),
        CheckConstraint("max_concurrent_agents >= 0", name="users_concurrency_not_negative"),
        CheckConstraint("max_task_duration_minutes > 0", name="users_duration_positive"),
        CheckConstraint("monthly_agent_hours_limit >= 0", name="users_hours_not_negative"),
        CheckConstraint(
            "num_nonnulls(window_zone, window_from, window_to) IN (0, 3)",
            name="users_window_whole_or_none",
        ),
        CheckConstraint("window_from <> window_to", name="users_window_has_length"),
        CheckConstraint(
            f"window_at_closing IN ({words(AtClosing)})", name="users_window_at_closing_known"
        ),
        CheckConstraint("night_budget_usd >= 0", name="users_night_budget_not_negative"),
        Index("idx_users_plan", "plan_tier"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    name: Mapped[str] = mapped_column(unique=True)
    is_admin: Mapped[bool] = mapped_column(server_default=text("false"))
    plan_tier: Mapped[str] = mapped_column(server_default=text("'free'"))
    max_concurrent_agents: Mapped[int] = mapped_column(server_default=text("1"))
    max_task_duration_minutes: Mapped[int] = mapped_column(server_default=text("30"))
    monthly_agent_hours_limit: Mapped[int | None] = mapped_column(server_default=text("10"))
    on_exhausted: Mapped[str] = mapped_column(server_default=text("'reject'"))
    max_pending: Mapped[int | None]
    max_tasks_per_dag: Mapped[int | None]
    # The night window, in the user's own words: wall-clock times of a zone. Without one, always.
    window_zone: Mapped[str | None]
    window_from: Mapped[time | None]
    window_to: Mapped[time | None]
    window_at_closing: Mapped[str] = mapped_column(server_default=text("'finish'"))
    night_budget_usd: Mapped[Decimal | None] = mapped_column(USD)
    billing_anchor_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    # Since when the user is shut out: no key opens anything, and nothing new starts.
    disabled_at: Mapped[datetime | None]


class Lane(Base):
    """What the gate must know of one user, on one narrow row; its lock is the user's mutex.

    `due_at` and `eligible` follow from the rest: `schema/rules.sql` keeps them.
    """

    __tablename__ = "lanes"
    __table_args__ = (
        Index(
            "lanes_pick",
            "active",
            "last_served_at",
            # Whoever was served by the same pass ties; the larger plan then goes first.
            text("plan_weight DESC"),
            postgresql_where=text("eligible"),
        ),
        Index("lanes_due", "due_at"),
        {"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.05}},
    )

    # Made by a trigger on users, who are never deleted. A foreign key would be checked anew each
    # time a transaction writes a lane twice, which every settling one does.
    user_id: Mapped[UUID] = mapped_column(primary_key=True)
    active: Mapped[int] = mapped_column(server_default=text("0"))
    ready: Mapped[int] = mapped_column(server_default=text("0"))
    waiting: Mapped[int] = mapped_column(server_default=text("0"))
    reserved_seconds: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_seconds: Mapped[Decimal] = mapped_column(server_default=text("0"))
    max_active: Mapped[int]
    max_task_seconds: Mapped[int]
    limit_seconds: Mapped[int | None] = mapped_column(BigInteger)
    plan_weight: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    # The night window as instants. `window_turns_at` is when the lane must be looked at again,
    # None without a window. After closing, `carried_until` still lets in what was made before
    # it (`continue`), and from `stops_runs_at` on runs are called back (`stop`).
    window_closed: Mapped[bool] = mapped_column(server_default=text("false"))
    window_turns_at: Mapped[datetime | None]
    carried_until: Mapped[datetime | None]
    stops_runs_at: Mapped[datetime | None]
    # Pools that looked here and found nothing they could start; any change of the lane wakes it.
    skipped_by_pools: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    last_served_at: Mapped[datetime] = mapped_column(server_default=text("'epoch'"))
    cycle: Mapped[int]
    cycle_started_at: Mapped[datetime]
    resets_at: Mapped[datetime]
    # The night in which money was last spent; NULL once it is over. The limit is tonight's: the
    # user's, and what was allowed on top of it.
    night_started_at: Mapped[datetime | None]
    night_ends_at: Mapped[datetime | None]
    night_spent_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    night_reserved_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    night_limit_usd: Mapped[Decimal | None] = mapped_column(USD)
    # The next instant at which the lane changes by itself: a new month, the window, or the end of
    # the night that is paid for.
    due_at: Mapped[datetime]
    # Whether the gate may look here at all.
    eligible: Mapped[bool]


class ApiKey(Base):
    """A key that opens the front door; only its hash is kept."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("api_keys_user", "user_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    last4: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(server_default=text("'{*}'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    # How long it was made to live; the key that takes over lives as long. None: without end.
    lifetime: Mapped[timedelta | None] = mapped_column(Interval)
    # The key that took over when this one was rotated; until it expires both are good.
    replaced_by: Mapped[str | None]
