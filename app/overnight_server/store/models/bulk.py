"""What is to be done to many tasks, and how far it has got."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, SmallInteger

from overnight_server.domain.bulk import Action, Progress
from overnight_server.store.models.base import EMPTY_OBJECT, Base, words

IS_RUNNING = text(f"state = '{Progress.RUNNING.value}'")


class BulkOperation(Base):
    """One action on all of a user's tasks that a filter chooses, worked off chunk by chunk.

    A chunk moves its tasks, the cursor and the counts in one transaction: whoever dies in between
    has done neither, and the next goes on from the cursor.
    """

    __tablename__ = "bulk_operations"
    __table_args__ = (
        CheckConstraint(f"action IN ({words(Action)})", name="bulk_operations_action_known"),
        CheckConstraint(f"state IN ({words(Progress)})", name="bulk_operations_state_known"),
        CheckConstraint(
            "(finished_at IS NULL) = (state = 'running')",
            name="bulk_operations_finished_exactly_when_not_running",
        ),
        CheckConstraint(
            "(priority IS NOT NULL) = (action = 'reprioritise')",
            name="bulk_operations_priority_exactly_where_it_is_set",
        ),
        CheckConstraint(
            "least(total, done, changed, skipped) >= 0", name="bulk_operations_counts_not_negative"
        ),
        Index("bulk_operations_user", "user_id", text("id DESC")),
        Index("bulk_operations_running", "user_id", "id", postgresql_where=IS_RUNNING),
        Index(
            "bulk_operations_idempotency",
            "user_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    action: Mapped[str]
    # The fields of the list's filter, as they were given.
    filter: Mapped[dict[str, Any]]
    priority: Mapped[int | None] = mapped_column(SmallInteger)
    created_by: Mapped[str]
    key_id: Mapped[str]
    idempotency_key: Mapped[str | None]
    state: Mapped[str] = mapped_column(server_default=text("'running'"))
    # How many tasks the filter chose when the operation was asked for.
    total: Mapped[int]
    done: Mapped[int] = mapped_column(server_default=text("0"))
    changed: Mapped[int] = mapped_column(server_default=text("0"))
    skipped: Mapped[int] = mapped_column(server_default=text("0"))
    # How many tasks were refused, by the reason.
    refused: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    # The last task looked at; NULL before the first chunk.
    cursor: Mapped[UUID | None]
    # The newest task there was, and the last event: what came in later is none of its business, and
    # an id alone does not tell, for whoever makes it may have waited, or have another clock.
    ceiling: Mapped[UUID | None]
    last_event: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    worked_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    cancelled_by: Mapped[str | None]
