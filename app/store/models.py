"""The tables, as typed models.

A *user* has plan columns; beside each user runs one narrow *lane* that counts what the gate
must know (active, ready, hours) and is locked before anything about that user's tasks changes.
A *task* belongs to a *dag* (a lone task to a dag of one) and may wait on others through
*task_edges*. Each claim of a task opens an *attempt*, keyed by the task's epoch; each attempt
that ran leaves rows in the *usage_ledger*, an append-only record in seconds per billing month.
Every change of state leaves an *event*. Tasks that failed for good stand in *dead_letters*;
answers from holders that had lost their claim in *stale_results*. *agents* are the workers that
can be reached, gathered in *pools*; *sweeps* remember when each maintenance sweep last ran.

Counters on lanes and dags, and all events, are written by triggers in the very statement that
changes a task, so no code can forget them. Instants come from the database function `clock()`.
"""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Computed,
    ForeignKey,
    Identity,
    Index,
    Numeric,
    PrimaryKeyConstraint,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Float, SmallInteger, Text

from app.domain.lifecycle import ACTIVE, FINAL, State
from app.domain.plans import PlanTier

Instant = TIMESTAMP(timezone=True)
EMPTY_ARRAY = text("'{}'")
EMPTY_OBJECT = text("'{}'")


def _words(values: Iterable[str]) -> str:
    """Write a closed set of words as SQL literals, sorted."""
    return ", ".join(f"'{value}'" for value in sorted(values))


# `failed` is passed through, never stored: the row moves on in the same transaction.
STORED_STATES = _words(state.value for state in State if state is not State.FAILED)
ACTIVE_STATES = _words(state.value for state in ACTIVE)
FINAL_STATES = _words(state.value for state in FINAL)
IS_ACTIVE = f"state IN ({ACTIVE_STATES})"


class Base(DeclarativeBase):
    """Common ground of all tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: Instant,
        str: Text,
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
        Decimal: Numeric(14, 3),
    }


class User(Base):
    """Someone who submits work; the columns, not the plan's template, rule at run time."""

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint(f"plan_tier IN ({_words(PlanTier)})", name="users_plan_tier_known"),
        CheckConstraint("on_exhausted IN ('hold', 'reject')", name="users_on_exhausted_known"),
        CheckConstraint("max_concurrent_agents >= 0", name="users_concurrency_not_negative"),
        CheckConstraint("max_task_duration_minutes > 0", name="users_duration_positive"),
        CheckConstraint("monthly_agent_hours_limit >= 0", name="users_hours_not_negative"),
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
    billing_anchor_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class Lane(Base):
    """What the gate must know of one user, on one narrow row; its lock is the user's mutex."""

    __tablename__ = "lanes"
    __table_args__ = (
        CheckConstraint("active >= 0", name="lanes_active_not_negative"),
        CheckConstraint("ready >= 0", name="lanes_ready_not_negative"),
        CheckConstraint("waiting >= ready", name="lanes_waiting_covers_ready"),
        CheckConstraint("reserved_seconds >= 0", name="lanes_reserved_not_negative"),
        Index(
            "lanes_pick",
            "active",
            "last_served_at",
            postgresql_where=text("eligible"),
        ),
        Index("lanes_reset", "resets_at"),
        {"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.05}},
    )

    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"), primary_key=True)
    active: Mapped[int] = mapped_column(server_default=text("0"))
    ready: Mapped[int] = mapped_column(server_default=text("0"))
    waiting: Mapped[int] = mapped_column(server_default=text("0"))
    reserved_seconds: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_seconds: Mapped[Decimal] = mapped_column(server_default=text("0"))
    max_active: Mapped[int]
    max_task_seconds: Mapped[int]
    limit_seconds: Mapped[int | None] = mapped_column(BigInteger)
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    # Pools that looked here and found nothing they could start; any change of the lane wakes it.
    parked_for: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    last_served_at: Mapped[datetime] = mapped_column(server_default=text("'epoch'"))
    cycle: Mapped[int]
    cycle_started_at: Mapped[datetime]
    resets_at: Mapped[datetime]
    eligible: Mapped[bool] = mapped_column(
        Computed(
            "ready > 0 AND active < max_active AND NOT paused"
            " AND (limit_seconds IS NULL OR used_seconds + reserved_seconds < limit_seconds)",
            persisted=True,
        )
    )


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


class Dag(Base):
    """A graph of tasks; its status follows from the counts that triggers keep."""

    __tablename__ = "dags"
    __table_args__ = (
        CheckConstraint(
            "least(total, open, started, completed, dead, cancelled) >= 0",
            name="dags_counts_not_negative",
        ),
        CheckConstraint("total = open + completed + dead + cancelled", name="dags_counts_add_up"),
        Index("dags_user", "user_id", text("id DESC")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    title: Mapped[str]
    created_by: Mapped[str]
    total: Mapped[int] = mapped_column(server_default=text("0"))
    open: Mapped[int] = mapped_column(server_default=text("0"))
    started: Mapped[int] = mapped_column(server_default=text("0"))
    completed: Mapped[int] = mapped_column(server_default=text("0"))
    dead: Mapped[int] = mapped_column(server_default=text("0"))
    cancelled: Mapped[int] = mapped_column(server_default=text("0"))
    status: Mapped[str] = mapped_column(
        Computed(
            "CASE WHEN open > 0 AND started + completed + dead + cancelled > 0 THEN 'running'"
            " WHEN open > 0 OR total = 0 THEN 'pending'"
            " WHEN dead > 0 THEN 'failed'"
            " WHEN cancelled > 0 THEN 'cancelled'"
            " ELSE 'completed' END",
            persisted=True,
        )
    )
    budget_ceiling_usd: Mapped[Decimal | None] = mapped_column(Numeric(12, 6))
    spent_usd: Mapped[Decimal] = mapped_column(Numeric(12, 6), server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    finished_at: Mapped[datetime | None]


class Task(Base):
    """The task: this row is the work, everything else is about it."""

    __tablename__ = "tasks"
    __table_args__ = (
        CheckConstraint(f"state IN ({STORED_STATES})", name="tasks_state_known"),
        CheckConstraint(
            "num_nonnulls(token, claimed_by, pool, claimed_at, expires_at, reserved_seconds)"
            f" = CASE WHEN {IS_ACTIVE} THEN 6 ELSE 0 END",
            name="tasks_claim_exactly_while_active",
        ),
        CheckConstraint(
            f"(finished_at IS NOT NULL) = (state IN ({FINAL_STATES}))",
            name="tasks_finished_exactly_when_final",
        ),
        CheckConstraint(
            "(retry_at IS NOT NULL) = (state = 'retrying')", name="tasks_retry_at_while_retrying"
        ),
        CheckConstraint(
            f"unmet = 0 OR state NOT IN ('ready', 'retrying', 'completed', {ACTIVE_STATES})",
            name="tasks_blocked_until_met",
        ),
        CheckConstraint("unmet >= 0", name="tasks_unmet_not_negative"),
        CheckConstraint("attempts BETWEEN 0 AND max_attempts", name="tasks_attempts_in_budget"),
        CheckConstraint("priority BETWEEN 0 AND 100", name="tasks_priority_in_range"),
        CheckConstraint("timeout_seconds > 0", name="tasks_timeout_positive"),
        Index(
            "tasks_ready",
            "user_id",
            "sort_key",
            "id",
            postgresql_where=text("state = 'ready'"),
        ),
        Index("tasks_active", "pool", postgresql_where=text(IS_ACTIVE)),
        Index(
            "tasks_lock",
            "user_id",
            "lock_key",
            unique=True,
            postgresql_where=text(f"{IS_ACTIVE} AND lock_key IS NOT NULL"),
        ),
        Index("tasks_retry", "retry_at", postgresql_where=text("state = 'retrying'")),
        Index("tasks_dag", "dag_id", "state"),
        Index("tasks_user_recent", "user_id", text("id DESC")),
        Index(
            "tasks_idempotency",
            "user_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        # The lease is deliberately in no index, so that a heartbeat stays a HOT update.
        {"postgresql_with": {"fillfactor": 75}},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    dag_id: Mapped[UUID] = mapped_column(ForeignKey("dags.id"))
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id"))

    type: Mapped[str]
    title: Mapped[str]
    description: Mapped[str] = mapped_column(server_default=text("''"))
    project_id: Mapped[str | None]
    payload: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    spec: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    tags: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    source: Mapped[str] = mapped_column(server_default=text("'api'"))
    created_by: Mapped[str]
    idempotency_key: Mapped[str | None]

    state: Mapped[str]
    revision: Mapped[int] = mapped_column(server_default=text("1"))
    unmet: Mapped[int] = mapped_column(server_default=text("0"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("50"))
    priority_boost_per_minute: Mapped[float] = mapped_column(Float, server_default=text("0.1"))
    sort_key: Mapped[float] = mapped_column(Float)
    deadline_at: Mapped[datetime | None]
    required_capabilities: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    lock_key: Mapped[str | None]
    timeout_seconds: Mapped[int | None]
    estimated_cost_usd: Mapped[Decimal | None] = mapped_column(Numeric(12, 6))
    max_cost_usd: Mapped[Decimal | None] = mapped_column(Numeric(12, 6))

    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    token: Mapped[UUID | None]
    claimed_by: Mapped[str | None]
    pool: Mapped[str | None]
    claimed_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    reserved_seconds: Mapped[int | None]
    started_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    progress: Mapped[dict[str, Any] | None]

    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("3"))
    retry: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    retry_at: Mapped[datetime | None]

    output: Mapped[dict[str, Any] | None]
    result_summary: Mapped[str | None]
    files_changed: Mapped[dict[str, Any] | None]
    failure_reason: Mapped[str | None]
    error: Mapped[str | None]
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(12, 6), server_default=text("0"))
    tokens_used: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)

    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    finished_at: Mapped[datetime | None]


class TaskEdge(Base):
    """One dependency; `satisfied_at` is flipped once, and the child counts the flips."""

    __tablename__ = "task_edges"
    __table_args__ = (
        PrimaryKeyConstraint("parent_id", "child_id"),
        CheckConstraint("parent_id <> child_id", name="task_edges_not_to_itself"),
        CheckConstraint(
            "condition IN ('failure', 'finished', 'success')", name="task_edges_condition_known"
        ),
        Index("task_edges_child", "child_id"),
    )

    parent_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    child_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    dag_id: Mapped[UUID] = mapped_column(ForeignKey("dags.id"))
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    condition: Mapped[str] = mapped_column(server_default=text("'success'"))
    satisfied_at: Mapped[datetime | None]


class Attempt(Base):
    """One claim of a task and what came of it; `spent` says whether it used up a try."""

    __tablename__ = "attempts"
    __table_args__ = (
        PrimaryKeyConstraint("task_id", "epoch"),
        CheckConstraint(
            "(ended_at IS NULL) = (outcome IS NULL)", name="attempts_outcome_exactly_when_ended"
        ),
        Index("attempts_user_open", "user_id", postgresql_where=text("ended_at IS NULL")),
        {"postgresql_with": {"fillfactor": 80}},
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    epoch: Mapped[int]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    token: Mapped[UUID]
    pool: Mapped[str]
    agent: Mapped[str]
    granted_seconds: Mapped[int]
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    spent: Mapped[bool] = mapped_column(server_default=text("false"))
    error_class: Mapped[str | None]
    error: Mapped[str | None]
    detail: Mapped[str | None]
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(12, 6), server_default=text("0"))
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
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    task_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id"))
    epoch: Mapped[int | None]
    period_started_at: Mapped[datetime]
    kind: Mapped[str]
    seconds: Mapped[Decimal]
    note: Mapped[str | None]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.clock())


class TaskEvent(Base):
    """One change of state, numbered without gaps within its task."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("task_id", "seq", name="events_gapless"),
        Index("events_user", "user_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
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
    total_cost_usd: Mapped[Decimal] = mapped_column(Numeric(12, 6))
    poison_pill: Mapped[bool] = mapped_column(server_default=text("false"))
    dead_lettered_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    reviewed: Mapped[bool] = mapped_column(server_default=text("false"))
    resolution: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    note: Mapped[str | None]


class StaleResult(Base):
    """An answer from a holder that had lost its claim: kept to be seen, never applied."""

    __tablename__ = "stale_results"
    __table_args__ = (Index("stale_results_task", "task_id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    task_id: Mapped[UUID]
    epoch: Mapped[int]
    agent: Mapped[str]
    outcome: Mapped[str]
    result: Mapped[dict[str, Any]]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.clock())


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
