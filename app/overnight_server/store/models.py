"""Typed SQLAlchemy models of the tables that queries in Python read or write.

The SQL files beside the first migration define the schema: columns, defaults, constraints, indexes
and database triggers. A model repeats only names, types and nullability of columns, so that
`select`, `insert` and `update` are type-checked. `tests/migrations` compares every model with the
schema. Statements in `sql/` need no model; add one when a query is written in Python, and remove it
with the last such query.
"""

from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Numeric, func
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Interval, SmallInteger, Text

USD = Numeric(18, 6)


class Base(DeclarativeBase):
    """Maps Python types to Postgres types for all models."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this attribute of the class
        datetime: TIMESTAMP(timezone=True),
        timedelta: Interval,
        str: Text,
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
        Decimal: Numeric(14, 3),
    }


class UserRow(Base):
    """A user with the limits that apply; the plan was only the template for them."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    name: Mapped[str]
    is_admin: Mapped[bool]
    plan_tier: Mapped[str]
    max_concurrent_agents: Mapped[int]
    max_task_duration_minutes: Mapped[int]
    monthly_agent_hours_limit: Mapped[int | None]
    on_exhausted: Mapped[str]
    max_pending: Mapped[int | None]
    max_tasks_per_dag: Mapped[int | None]
    artifact_storage_mb: Mapped[int | None]
    window_zone: Mapped[str | None]
    window_from: Mapped[time | None]
    window_to: Mapped[time | None]
    window_at_closing: Mapped[str]
    night_budget_usd: Mapped[Decimal | None] = mapped_column(USD)
    billing_anchor_at: Mapped[datetime]
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class LaneRow(Base):
    """A user's counters and limits as the gate reads them; its row lock is the user's mutex."""

    __tablename__ = "lanes"

    user_id: Mapped[UUID] = mapped_column(primary_key=True)
    active: Mapped[int]
    ready: Mapped[int]
    waiting: Mapped[int]
    reserved_seconds: Mapped[int] = mapped_column(BigInteger)
    used_seconds: Mapped[Decimal]
    max_active: Mapped[int]
    max_task_seconds: Mapped[int]
    limit_seconds: Mapped[int | None] = mapped_column(BigInteger)
    plan_weight: Mapped[int] = mapped_column(SmallInteger)
    paused: Mapped[bool]
    window_closed: Mapped[bool]
    window_changes_at: Mapped[datetime | None]
    carry_over_until: Mapped[datetime | None]
    stops_runs_at: Mapped[datetime | None]
    skipped_by_pools: Mapped[list[str]]
    skipped_by_hash: Mapped[int] = mapped_column(BigInteger)
    last_served_at: Mapped[datetime]
    cycle: Mapped[int]
    cycle_started_at: Mapped[datetime]
    resets_at: Mapped[datetime]
    night_started_at: Mapped[datetime | None]
    night_ends_at: Mapped[datetime | None]
    night_spent_usd: Mapped[Decimal] = mapped_column(USD)
    night_reserved_usd: Mapped[Decimal] = mapped_column(USD)
    night_limit_usd: Mapped[Decimal | None] = mapped_column(USD)
    night_used_up: Mapped[bool]
    due_at: Mapped[datetime]
    eligible: Mapped[bool]
    held_by: Mapped[str | None]


class ApiKeyRow(Base):
    """An API key; only its hash is stored."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[UUID]
    name: Mapped[str]
    hash: Mapped[str]
    last4: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    lifetime: Mapped[timedelta | None]
    replaced_by: Mapped[str | None]
    made_by: Mapped[str | None]


class LedgerEntryRow(Base):
    """Seconds charged or refunded for one attempt in one billing month; never changed."""

    __tablename__ = "usage_ledger"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    user_id: Mapped[UUID]
    task_id: Mapped[UUID | None]
    epoch: Mapped[int | None]
    period_started_at: Mapped[datetime]
    kind: Mapped[str]
    seconds: Mapped[Decimal]
    note: Mapped[str | None]
    recorded_at: Mapped[datetime]


class NoticeRow(Base):
    """A message for a user, written once per kind and subject, such as "80 % of hours used"."""

    __tablename__ = "notices"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    user_id: Mapped[UUID]
    kind: Mapped[str]
    subject: Mapped[str]
    task_id: Mapped[UUID | None]
    detail: Mapped[dict[str, Any]]
    at: Mapped[datetime]


class AgentRow(Base):
    """A worker or pull agent that offers slots in a pool."""

    __tablename__ = "agents"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    pool: Mapped[str]
    capabilities: Mapped[list[str]]
    types: Mapped[list[str] | None]
    slots: Mapped[int]
    budget_remaining_usd: Mapped[Decimal | None] = mapped_column(USD)
    status: Mapped[str]
    joined_at: Mapped[datetime]
    last_heartbeat_at: Mapped[datetime]
    owner_id: Mapped[UUID | None]
    name: Mapped[str | None]
    models: Mapped[list[str]]
    claim_ttl_seconds: Mapped[int | None]
    stale_after_seconds: Mapped[int | None]
    drain_requested_at: Mapped[datetime | None]
    authorized_by: Mapped[str | None]
    authorized_until: Mapped[datetime | None]
    deaf_since: Mapped[datetime | None]
    dropped_messages: Mapped[int] = mapped_column(BigInteger)


class SweepRunRow(Base):
    """When a maintenance sweep last ran; beat processes update this row to run it only once."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    touched: Mapped[int | None]
    position: Mapped[str | None]
    resumed_at: Mapped[datetime | None]
