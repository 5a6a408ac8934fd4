"""What happened: attempts, hours, money, notices, events, dead letters and stale results.

Attempts, ledger and events are written only by statements and triggers that hold the task's
own row, and nothing is ever deleted; a foreign key would check on every write what cannot be
otherwise, and lock the task's row once more each time.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    PrimaryKeyConstraint,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from overnight_server.store.models.base import EMPTY_OBJECT, USD, Base

BY_PEOPLE = "starts_with(actor, 'user:') OR starts_with(actor, 'human:')"


class Attempt(Base):
    """One claim of a task and what came of it; `spent` says whether it used up a try."""

    __tablename__ = "attempts"
    __table_args__ = (
        PrimaryKeyConstraint("task_id", "epoch"),
        CheckConstraint(
            "(ended_at IS NULL) = (outcome IS NULL)", name="attempts_outcome_exactly_when_ended"
        ),
        # Rows come in the order of their claims, so a few bytes per hundred pages lead to a
        # period; a tree would be written to with every claim.
        Index("attempts_claimed", "claimed_at", postgresql_using="brin"),
        {"postgresql_with": {"fillfactor": 80}},
    )

    task_id: Mapped[UUID]
    epoch: Mapped[int]
    user_id: Mapped[UUID]
    token: Mapped[UUID]
    pool: Mapped[str]
    agent: Mapped[str]
    bundle: Mapped[UUID | None]
    granted_seconds: Mapped[int]
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    spent: Mapped[bool] = mapped_column(server_default=text("false"))
    error_class: Mapped[str | None]
    error: Mapped[str | None]
    detail: Mapped[str | None]
    cost_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    tokens_used: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)


class LedgerEntry(Base):
    """Seconds charged or refunded, per attempt and billing month; rows are only ever added."""

    __tablename__ = "usage_ledger"
    __table_args__ = (
        # The last wall against billing one attempt twice.
        UniqueConstraint("task_id", "epoch", "period_started_at", "kind", name="usage_ledger_once"),
        CheckConstraint(
            "kind IN ('adjustment', 'refund', 'usage')", name="usage_ledger_kind_known"
        ),
        CheckConstraint(
            "(kind = 'usage' AND seconds >= 0) OR (kind = 'refund' AND seconds <= 0)"
            " OR kind = 'adjustment'",
            name="usage_ledger_sign_fits_kind",
        ),
        Index("usage_ledger_user_period", "user_id", "period_started_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID]
    task_id: Mapped[UUID | None]
    epoch: Mapped[int | None]
    period_started_at: Mapped[datetime]
    kind: Mapped[str]
    seconds: Mapped[Decimal]
    note: Mapped[str | None]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class Spending(Base):
    """What one run cost in one night, as it was reported; only ever grows.

    Everything else that counts money (graph, agent, the user's night) is counted from here, by a
    trigger in the statement that writes the row.
    """

    __tablename__ = "spending"
    __table_args__ = (
        PrimaryKeyConstraint("task_id", "epoch", "night_started_at"),
        CheckConstraint("usd >= 0", name="spending_not_negative"),
        Index("spending_night", "user_id", "night_started_at"),
    )

    task_id: Mapped[UUID]
    epoch: Mapped[int]
    night_started_at: Mapped[datetime]
    user_id: Mapped[UUID]
    dag_id: Mapped[UUID]
    usd: Mapped[Decimal] = mapped_column(USD)


class Notice(Base):
    """Something a user should hear once: hours running out, a task that keeps failing.

    What it is about (a billing month, one run of a task) is told once under each kind, however
    many come to the same conclusion at the same moment.
    """

    __tablename__ = "notices"
    __table_args__ = (
        UniqueConstraint("user_id", "kind", "subject", name="notices_once"),
        Index("notices_user", "user_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID]
    kind: Mapped[str]
    subject: Mapped[str]
    task_id: Mapped[UUID | None]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    at: Mapped[datetime] = mapped_column(server_default=func.clock())


class TaskEvent(Base):
    """One change of state, numbered without gaps within its task."""

    __tablename__ = "events"
    __table_args__ = (
        PrimaryKeyConstraint("task_id", "seq"),
        Index("events_user", "user_id", "id"),
        # What people did; the moves that the deployment makes by itself are many times more.
        Index("events_by_people", "at", postgresql_where=text(BY_PEOPLE)),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    task_id: Mapped[UUID]
    seq: Mapped[int]
    user_id: Mapped[UUID]
    dag_id: Mapped[UUID]
    kind: Mapped[str]
    from_state: Mapped[str | None]
    to_state: Mapped[str]
    epoch: Mapped[int]
    reason: Mapped[str | None]
    actor: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.clock())


class DeadLetter(Base):
    """A task that failed for good, with its whole history, until a person resolves it."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        CheckConstraint(
            "resolution IN ('cancel', 'modify_and_retry', 'retry')",
            name="dead_letters_resolution_known",
        ),
        CheckConstraint(
            "(resolution IS NULL) = (resolved_at IS NULL)",
            name="dead_letters_resolved_exactly_with_resolution",
        ),
        Index(
            "dead_letters_open",
            "task_id",
            unique=True,
            postgresql_where=text("resolution IS NULL"),
        ),
        Index("dead_letters_user", "user_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    dag_id: Mapped[UUID]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    failure_history: Mapped[dict[str, Any]]
    total_cost_usd: Mapped[Decimal] = mapped_column(USD)
    poison_pill: Mapped[bool] = mapped_column(server_default=text("false"))
    dead_lettered_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    reviewed: Mapped[bool] = mapped_column(server_default=text("false"))
    resolution: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    note: Mapped[str | None]


class Artifact(Base):
    """Something a run made for others to read besides its output, under a name of its task.

    A later run of the same task that gives the same name replaces the content and keeps the id.
    """

    __tablename__ = "artifacts"
    __table_args__ = (
        UniqueConstraint("task_id", "name", name="artifacts_once"),
        CheckConstraint("kind IN ('bytes', 'json', 'text')", name="artifacts_kind_known"),
        Index("artifacts_user", "user_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    epoch: Mapped[int]
    name: Mapped[str]
    kind: Mapped[str]
    size: Mapped[int]
    content: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class StaleResult(Base):
    """An answer from a holder that had lost its claim: kept to be seen, never applied.

    The first of each claim, so that nobody can fill the deployment with what nobody waits for.
    """

    __tablename__ = "stale_results"
    __table_args__ = (Index("stale_results_claim", "task_id", "epoch", unique=True),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    task_id: Mapped[UUID]
    epoch: Mapped[int]
    agent: Mapped[str]
    outcome: Mapped[str]
    result: Mapped[dict[str, Any]]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class AuditEntry(Base):
    """Somebody changed what may be done: who, what, to whom, and through which door.

    Only triggers write here, in the statement that makes the change; rows are never changed.
    """

    __tablename__ = "audit_log"
    __table_args__ = (Index("audit_log_at", "at"), Index("audit_log_user", "user_id", "at"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.clock())
    actor: Mapped[str]
    via: Mapped[str] = mapped_column(server_default=text("current_setting('application_name')"))
    key_id: Mapped[str | None]
    act: Mapped[str]
    # Whom it concerns; None if everybody.
    user_id: Mapped[UUID | None]
    target: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
