"""Locks: who holds which key now, and who had to wait for whom."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Computed, Identity, Index, PrimaryKeyConstraint, func
from sqlalchemy.dialects.postgresql import ExcludeConstraint
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from overnight_server.store.models.base import Base, Spans


class HeldLock(Base):
    """One key that an active task holds; no two of a user's are the same, and no two paths meet.

    Only triggers write here, in the statement that moves the task, so a lock cannot outlive its
    claim. Since when and until when it is held stands on the task.
    """

    __tablename__ = "held_locks"
    __table_args__ = (
        PrimaryKeyConstraint("user_id", "key"),
        ExcludeConstraint(
            ("span", "&&"), using="gist", where="span IS NOT NULL", name="held_locks_paths_apart"
        ),
    )

    user_id: Mapped[UUID]
    key: Mapped[str]
    task_id: Mapped[UUID]
    span: Mapped[Any | None] = mapped_column(
        Spans("textrange"), Computed("lock_span(user_id, key)", persisted=True)
    )


class LockWait(Base):
    """A lock that came free while somebody waited for it: how long, and behind whom."""

    __tablename__ = "lock_waits"
    __table_args__ = (Index("lock_waits_user", "user_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID]
    key: Mapped[str]
    holder_id: Mapped[UUID]
    waiter_id: Mapped[UUID]
    waiting: Mapped[int]
    since: Mapped[datetime]
    until: Mapped[datetime] = mapped_column(server_default=func.clock())
