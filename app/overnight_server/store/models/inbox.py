"""What programs leave in their own transactions, until intake has taken it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from overnight_server.store.models.base import Base

IS_WAITING = text("outcome IS NULL")


class InboxRow(Base):
    """A task as a program left it, and what became of it; without an outcome it still waits.

    Written by the function `overnight_inbox_submit` alone, which anybody may call who can show
    that he holds a key.
    """

    __tablename__ = "inbox"
    __table_args__ = (
        CheckConstraint(
            "outcome IN ('accepted', 'dropped', 'refused')", name="inbox_outcome_known"
        ),
        CheckConstraint(
            "(outcome IS NULL) = (settled_at IS NULL)", name="inbox_settled_exactly_with_outcome"
        ),
        CheckConstraint(
            "(task_id IS NOT NULL) = (outcome IS NOT DISTINCT FROM 'accepted')",
            name="inbox_task_exactly_when_accepted",
        ),
        Index("inbox_waiting", "user_id", "id", postgresql_where=IS_WAITING),
        Index("inbox_refused", "id", postgresql_where=text("outcome = 'refused'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    key_id: Mapped[str]
    task: Mapped[dict[str, Any]]
    arrived_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    # Only the oldest of a user's is looked at, so that those behind it keep their order.
    due_at: Mapped[datetime] = mapped_column(server_default=func.clock())
    # The limit that keeps it waiting, or the last one that did.
    held_by: Mapped[str | None]
    outcome: Mapped[str | None]
    settled_at: Mapped[datetime | None]
    task_id: Mapped[UUID | None]
    # Why it was refused; kept when it was dropped for that.
    error: Mapped[str | None]
    settled_by: Mapped[str | None]
