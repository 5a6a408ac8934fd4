"""The deployment itself: pools and agents, sweeps, and the table of moves."""

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    PrimaryKeyConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Float

from overnight_server.domain.pauses import Scope
from overnight_server.store.models.base import EMPTY_ARRAY, USD, Base, words


class Pool(Base):
    """A Celery queue of like workers, or one agent that asks for work itself (`pull`).

    Its row is locked while its free slots are counted.
    """

    __tablename__ = "pools"
    __table_args__ = (CheckConstraint("kind IN ('celery', 'pull')", name="pools_kind_known"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(server_default=text("'celery'"))
    # The only user whose tasks are done here; NULL for everybody's.
    serves: Mapped[UUID | None] = mapped_column(ForeignKey("users.id"))
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class Agent(Base):
    """A worker that can be reached; one row per boot, so a restarted one is another agent.

    Pull agents, which ask for work over HTTP, have an owner and a name instead, and
    keep their row.
    """

    __tablename__ = "agents"
    __table_args__ = (
        CheckConstraint("status IN ('active', 'draining', 'offline')", name="agents_status_known"),
        CheckConstraint("slots >= 0", name="agents_slots_not_negative"),
        Index("agents_pool", "pool", postgresql_where=text("status = 'active'")),
        Index("agents_draining", "pool", postgresql_where=text("status = 'draining'")),
        CheckConstraint(
            "num_nonnulls(owner_id, name, claim_ttl_seconds, stale_after_seconds)"
            " = CASE kind WHEN 'pull' THEN 4 ELSE 0 END",
            name="agents_outside_have_owners",
        ),
        Index("agents_of_owner", "owner_id", "name", unique=True),
        {"postgresql_with": {"fillfactor": 50}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(server_default=text("'celery'"))
    pool: Mapped[str] = mapped_column(ForeignKey("pools.name"))
    capabilities: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    types: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    slots: Mapped[int]
    # What its runs may still cost; NULL for no limit. It may go below zero: runs report afterwards.
    budget_remaining_usd: Mapped[Decimal | None] = mapped_column(USD)
    status: Mapped[str] = mapped_column(server_default=text("'active'"))
    joined_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    last_heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    owner_id: Mapped[UUID | None] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str | None]
    models: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    # How long its claims wait for their start, and after how much silence it, or a run of its,
    # counts as gone. Workers of the deployment go by the settings.
    claim_ttl_seconds: Mapped[int | None]
    stale_after_seconds: Mapped[int | None]
    # Kept beside the status, so that a worker which was away for a while is still draining.
    drain_requested_at: Mapped[datetime | None]


class Pause(Base):
    """Somebody stopped a user, a pool or everything from starting work; kept when it is over."""

    __tablename__ = "pauses"
    __table_args__ = (
        CheckConstraint(f"scope IN ({words(Scope)})", name="pauses_scope_known"),
        CheckConstraint("(target IS NULL) = (scope = 'all')", name="pauses_target_fits_scope"),
        CheckConstraint(
            "(resumed_at IS NULL) = (resumed_by IS NULL)", name="pauses_resumed_by_somebody"
        ),
        Index(
            "pauses_in_force",
            "scope",
            text("coalesce(target, '')"),
            unique=True,
            postgresql_where=text("resumed_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    scope: Mapped[str]
    # A user's id or a pool's name; None for everything.
    target: Mapped[str | None]
    note: Mapped[str | None]
    paused_by: Mapped[str]
    paused_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    resumed_by: Mapped[str | None]
    resumed_at: Mapped[datetime | None]


class Pace(Base):
    """How long runs of a type take of late, as workers report it.

    `seconds` sizes the bundles; `recent`, a sample of the last runs, is what forecasts draw from.
    """

    __tablename__ = "paces"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    type: Mapped[str] = mapped_column(primary_key=True)
    seconds: Mapped[float] = mapped_column(Float)
    recent: Mapped[list[float]] = mapped_column(ARRAY(Float), server_default=EMPTY_ARRAY)
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class SweepRun(Base):
    """When a maintenance sweep last ran; two beats take turns by updating this row."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    touched: Mapped[int | None]


class SourceJob(Base):
    """A scheduler's job, by the name it gives itself, and what became of its latest submit."""

    __tablename__ = "source_jobs"
    __table_args__ = (
        PrimaryKeyConstraint("user_id", "name"),
        CheckConstraint(
            "(task_id IS NOT NULL) = (last_status = 'queued')", name="source_jobs_task_when_queued"
        ),
    )

    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    last_status: Mapped[str]
    last_run_at: Mapped[datetime]
    task_id: Mapped[UUID | None]


class LegalMove(Base):
    """The table of moves as the database knows it; a trigger refuses every other one."""

    __tablename__ = "legal_moves"
    __table_args__ = (PrimaryKeyConstraint("from_state", "to_state"),)

    from_state: Mapped[str]
    to_state: Mapped[str]
