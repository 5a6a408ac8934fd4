"""Tasks, their graphs and their edges."""

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Computed,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Float, SmallInteger

from overnight_server.domain.graphs import Condition, OnUnmet, When
from overnight_server.store.models.base import (
    EMPTY_ARRAY,
    EMPTY_OBJECT,
    IS_ACTIVE,
    IS_WAITING,
    USD,
    Base,
    Spans,
    words,
)


class Dag(Base):
    """A graph of tasks; its status follows from the counts that triggers keep.

    A lone task is a graph by itself: its `dag_id` is its own id, and there is no row here until
    a second task joins it. The view `graphs` shows both alike.
    """

    __tablename__ = "dags"
    __table_args__ = (
        CheckConstraint(
            "least(total, open, completed, dead, cancelled, stopped) >= 0",
            name="dags_counts_not_negative",
        ),
        CheckConstraint("stopped <= cancelled", name="dags_stopped_are_cancelled"),
        CheckConstraint("total = open + completed + dead + cancelled", name="dags_counts_add_up"),
        CheckConstraint("budget_ceiling_usd >= 0", name="dags_budget_not_negative"),
        Index("dags_user", "user_id", text("id DESC")),
        Index(
            "dags_idempotency",
            "user_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index(
            "dags_with_budget",
            "user_id",
            postgresql_where=text("budget_ceiling_usd IS NOT NULL AND finished_at IS NULL"),
        ),
        {"postgresql_with": {"fillfactor": 75}},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    title: Mapped[str]
    created_by: Mapped[str]
    idempotency_key: Mapped[str | None]
    total: Mapped[int] = mapped_column(server_default=text("0"))
    open: Mapped[int] = mapped_column(server_default=text("0"))
    completed: Mapped[int] = mapped_column(server_default=text("0"))
    dead: Mapped[int] = mapped_column(server_default=text("0"))
    cancelled: Mapped[int] = mapped_column(server_default=text("0"))
    # Those of the cancelled that somebody stopped; the others were cancelled in consequence.
    stopped: Mapped[int] = mapped_column(server_default=text("0"))
    status: Mapped[str] = mapped_column(
        Computed(
            "CASE WHEN total = 0 THEN 'pending'"
            " WHEN open > 0 THEN 'running'"
            " WHEN dead > 0 THEN 'failed'"
            " WHEN stopped > 0 THEN 'cancelled'"
            " ELSE 'completed' END",
            persisted=True,
        )
    )
    budget_ceiling_usd: Mapped[Decimal | None] = mapped_column(USD)
    spent_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    reserved_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    # The graph this one began as a fork of.
    forked_from: Mapped[UUID | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    finished_at: Mapped[datetime | None]


class Task(Base):
    """The task: this row is the work, everything else is about it.

    What a row must be stands in `schema/rules.sql`.
    """

    __tablename__ = "tasks"
    __table_args__ = (
        Index(
            "tasks_ready",
            "user_id",
            "sort_key",
            "id",
            postgresql_where=text("state = 'ready'"),
        ),
        Index("tasks_active", "pool", postgresql_where=text(IS_ACTIVE)),
        Index(
            "tasks_urgent",
            "user_id",
            postgresql_where=text(f"{IS_WAITING} AND priority < 30"),
        ),
        Index(
            "tasks_awaiting_budget",
            "user_id",
            postgresql_where=text("awaits_budget IS NOT NULL"),
        ),
        Index("tasks_retry", "retry_at", postgresql_where=text("state = 'retrying'")),
        Index(
            "tasks_deadline",
            "deadline_at",
            "id",
            postgresql_where=text(f"deadline_at IS NOT NULL AND {IS_WAITING}"),
        ),
        Index("tasks_dag", "dag_id", postgresql_include=["state"]),
        # A repeated run of a parent finds its children by the keys it gave them.
        Index(
            "tasks_spawned",
            "parent_id",
            "spawn_key",
            unique=True,
            postgresql_where=text("parent_id IS NOT NULL"),
        ),
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
    # That there is such a user is seen when the lane is counted, once for all rows of a statement.
    user_id: Mapped[UUID]
    dag_id: Mapped[UUID]
    # Who spawned it, and under which key of its own.
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id"))
    spawn_key: Mapped[str | None]
    # A lone task whose graph has a row all the same, since others have joined it.
    grown: Mapped[bool] = mapped_column(server_default=text("false"))
    # `orchestrator` may spawn for other agents.
    role: Mapped[str | None]
    # Whose outputs it is given: the reference as written, and the id it stands for.
    context_refs: Mapped[dict[str, Any] | None]
    # The task whose completion a fork took over: this one never ran, and cost nothing.
    taken_from: Mapped[UUID | None]

    type: Mapped[str]
    # What its graph calls it; tasks that nobody refers to have no name.
    name: Mapped[str | None]
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
    # Where the last write moved it from; NULL if it stayed where it was. Kept by a trigger.
    moved_from: Mapped[str | None]
    revision: Mapped[int] = mapped_column(server_default=text("1"))
    unmet: Mapped[int] = mapped_column(server_default=text("0"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("50"))
    priority_boost_per_minute: Mapped[float] = mapped_column(Float, server_default=text("0.1"))
    # Points for the work that waits behind this task in its graph.
    dependency_boost: Mapped[float] = mapped_column(Float, server_default=text("0"))
    sort_key: Mapped[float] = mapped_column(Float)
    deadline_at: Mapped[datetime | None]
    required_capabilities: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    # What it must hold alone while it runs; NULL for nothing, never an empty list.
    locks: Mapped[list[str] | None]
    # The spans of those that are paths; kept by a trigger.
    lock_paths: Mapped[Any | None] = mapped_column(Spans("textmultirange"))
    timeout_seconds: Mapped[int | None]
    estimated_cost_usd: Mapped[Decimal | None] = mapped_column(USD)
    max_cost_usd: Mapped[Decimal | None] = mapped_column(USD)
    # Which budget it has used up, and waits for somebody to raise.
    awaits_budget: Mapped[str | None]

    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    token: Mapped[UUID | None]
    claimed_by: Mapped[str | None]
    pool: Mapped[str | None]
    claimed_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    reserved_seconds: Mapped[int | None]
    # What the run may still cost by its estimate, and what it has cost so far.
    reserved_usd: Mapped[Decimal | None] = mapped_column(USD)
    run_cost_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    # Short tasks travel together; the message they share. One that a crash found in company
    # runs alone from then on.
    bundle: Mapped[UUID | None]
    alone: Mapped[bool] = mapped_column(server_default=text("false"))
    started_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    progress: Mapped[dict[str, Any] | None]

    # Runs up to this epoch were forgiven by an operator: they no longer count towards poison.
    forgiven_epoch: Mapped[int] = mapped_column(server_default=text("0"))
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("3"))
    # What its maker asked for, once a retry by hand has raised max_attempts.
    asked_attempts: Mapped[int | None]
    retry: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    retry_at: Mapped[datetime | None]

    output: Mapped[dict[str, Any] | None]
    result_summary: Mapped[str | None]
    files_changed: Mapped[dict[str, Any] | None]
    failure_reason: Mapped[str | None]
    error: Mapped[str | None]
    cost_usd: Mapped[Decimal] = mapped_column(USD, server_default=text("0"))
    tokens_used: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)

    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    finished_at: Mapped[datetime | None]


class TaskEdge(Base):
    """One dependency; `satisfied_at` is flipped once, and the child counts the flips.

    It is met when its parent ends as `condition` wants; `on_unmet` says what becomes of the child
    when the parent has ended otherwise. One that was met stays met, whatever its parent does next.
    """

    __tablename__ = "task_edges"
    __table_args__ = (
        PrimaryKeyConstraint("parent_id", "child_id"),
        CheckConstraint("parent_id <> child_id", name="task_edges_not_to_itself"),
        CheckConstraint(f"condition IN ({words(Condition)})", name="task_edges_condition_known"),
        CheckConstraint(f"on_unmet IN ({words(OnUnmet)})", name="task_edges_on_unmet_known"),
        Index("task_edges_child", "child_id"),
        # Each is flipped once: room on its page spares the indexes.
        {"postgresql_with": {"fillfactor": 60}},
    )

    parent_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    child_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"))
    dag_id: Mapped[UUID] = mapped_column(ForeignKey("dags.id"))
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    condition: Mapped[str] = mapped_column(server_default=text("'success'"))
    on_unmet: Mapped[str] = mapped_column(server_default=text("'cancel'"))
    # Claims of the child up to this epoch were made before the edge was.
    since_epoch: Mapped[int] = mapped_column(server_default=text("0"))
    satisfied_at: Mapped[datetime | None]


class DagTrigger(Base):
    """A graph that is let in once another has ended as `condition` wants.

    The statement that ends the other graph also makes the trigger due, by a trigger of the
    database; a sweep then lets `graph` in and marks the trigger fired in one transaction.
    """

    __tablename__ = "dag_triggers"
    __table_args__ = (
        CheckConstraint(f"condition IN ({words(When)})", name="dag_triggers_condition_known"),
        CheckConstraint(
            "(fired_at IS NULL) = (fired_dag_id IS NULL)", name="dag_triggers_fired_with_graph"
        ),
        CheckConstraint("fired_at IS NULL OR due_at IS NOT NULL", name="dag_triggers_fired_if_due"),
        CheckConstraint(
            "fired_at IS NULL OR dropped_at IS NULL", name="dag_triggers_fired_or_dropped"
        ),
        Index("dag_triggers_dag", "dag_id"),
        Index(
            "dag_triggers_due",
            "due_at",
            postgresql_where=text("due_at IS NOT NULL AND fired_at IS NULL AND dropped_at IS NULL"),
        ),
        Index(
            "dag_triggers_lone",
            "dag_id",
            postgresql_where=text("is_lone AND due_at IS NULL AND dropped_at IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    dag_id: Mapped[UUID]
    # A lone task has no row in `dags` whose end could set this off: the sweep looks at its events.
    is_lone: Mapped[bool]
    condition: Mapped[str]
    graph: Mapped[dict[str, Any]]
    created_by: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    due_at: Mapped[datetime | None]
    # Why the graph could not be let in when it was last tried; it is tried again.
    refusal: Mapped[str | None]
    refused_at: Mapped[datetime | None]
    fired_at: Mapped[datetime | None]
    fired_dag_id: Mapped[UUID | None]
    dropped_at: Mapped[datetime | None]
