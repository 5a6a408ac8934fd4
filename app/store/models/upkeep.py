"""The house itself: pools and agents, sweeps, and the table of moves."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Float

from app.store.models.base import EMPTY_ARRAY, Base


class Pool(Base):
    """A Celery queue of like workers; its row is locked while its free slots are counted."""

    __tablename__ = "pools"

    name: Mapped[str] = mapped_column(primary_key=True)
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class Agent(Base):
    """A worker that can be reached; one row per boot, so a restarted one is another agent."""

    __tablename__ = "agents"
    __table_args__ = (
        CheckConstraint("status IN ('active', 'draining', 'offline')", name="agents_status_known"),
        CheckConstraint("slots >= 0", name="agents_slots_not_negative"),
        Index("agents_pool", "pool", postgresql_where=text("status = 'active'")),
        {"postgresql_with": {"fillfactor": 50}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(server_default=text("'celery'"))
    pool: Mapped[str] = mapped_column(ForeignKey("pools.name"))
    capabilities: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    types: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    slots: Mapped[int]
    status: Mapped[str] = mapped_column(server_default=text("'active'"))
    joined_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    last_heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.clock())


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


class LegalMove(Base):
    """The table of moves as the database knows it; a trigger refuses every other one."""

    __tablename__ = "legal_moves"
    __table_args__ = (PrimaryKeyConstraint("from_state", "to_state"),)

    from_state: Mapped[str]
    to_state: Mapped[str]
