"""Caps on waiting work: per user, per graph, and for the whole deployment."""

from dataclasses import dataclass
from typing import Self

from sqlalchemy import Connection

from overnight.errors import (
    DagTooLarge,
    InvalidRequest,
    MonthlyLimitReached,
    QueueFull,
    TooManyPending,
    UserNotFound,
)
from overnight_server.domain.ids import UserId
from overnight_server.domain.lock_keys import LockScope
from overnight_server.domain.plans import OnExhausted
from overnight_server.settings import Settings
from overnight_server.store import lanes

SECONDS_PER_HOUR = 3600
# Within this many tasks of the deployment's cap, submits take a lock and count one after the
# other, so that they cannot exceed the cap. Further away, concurrent submits are never that many.
NEAR_FULL = 10_000


@dataclass(frozen=True)
class Caps:
    """How much work may wait, and the lock scope of a task that declares no locks."""

    max_pending_per_user: int = 50
    queue_max_size: int = 1_000_000
    max_tasks_per_dag: int = 1_000
    lock_scope: LockScope = "project"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the caps that the settings give."""
        enabled = settings.per_user_serialization_enabled
        return cls(
            max_pending_per_user=settings.max_pending_per_user,
            queue_max_size=settings.queue_max_size,
            max_tasks_per_dag=settings.max_tasks_per_dag,
            lock_scope=settings.per_user_serialization_scope if enabled else "none",
        )


def check_graph_size(
    lane: lanes.LaneView | None, size: int, caps: Caps, *, field_name: str = "tasks"
) -> lanes.LaneView:
    """Return the lane; raise UserNotFound if it is None, InvalidRequest for too large a graph."""
    if lane is None:
        raise UserNotFound
    largest = lane.max_tasks_per_dag or caps.max_tasks_per_dag
    if size > largest:
        raise InvalidRequest(field_name, f"a graph of {size} tasks", legal=f"at most {largest}")
    return lane


def check_graph_can_grow(tx: Connection, user_id: UserId, total: int, caps: Caps) -> None:
    """Raise DagTooLarge if a graph that has `total` tasks may not get another one."""
    lane = lanes.read(tx, user_id)
    largest = (lane.max_tasks_per_dag if lane else None) or caps.max_tasks_per_dag
    if total >= largest:
        raise DagTooLarge(total, largest)


def check_caps(
    tx: Connection,
    user_id: UserId,
    count: int,
    caps: Caps,
    *,
    size: int = 1,
    field_name: str = "tasks",
) -> int:
    """Raise if `count` more waiting tasks, in a graph of `size`, exceed a cap.

    Raises UserNotFound, InvalidRequest for too large a graph, QueueFull, TooManyPending and
    MonthlyLimitReached. Return how many tasks will then wait in the whole deployment. The result is
    final only if the caller holds the user's lane. Near the cap of the deployment it locks the
    depth, so that submits of different users count one after the other.
    """
    lane = lanes.read(tx, user_id, with_depth=True)
    return check_caps_of_lane(tx, lane, count, caps, size=size, field_name=field_name)


def check_caps_of_lane(
    tx: Connection,
    lane_read: lanes.LaneView | None,
    count: int,
    caps: Caps,
    *,
    size: int = 1,
    field_name: str = "tasks",
) -> int:
    """Do what `check_caps` does with a lane that the caller has read already."""
    lane = check_graph_size(lane_read, size, caps, field_name=field_name)
    limit = lane.max_pending if lane.max_pending is not None else caps.max_pending_per_user
    # The whole queue first: in a deployment with one user both limits may be equal.
    depth = lane.total_depth if lane.total_depth is not None else lanes.depth(tx)
    if depth + count + NEAR_FULL > caps.queue_max_size:
        depth = lanes.locked_depth(tx)
    if depth + count > caps.queue_max_size:
        raise QueueFull(depth, caps.queue_max_size)
    if lane.waiting + count > limit:
        raise TooManyPending(lane.waiting, limit, count)
    if (
        lane.is_exhausted
        and lane.on_exhausted == OnExhausted.REJECT
        and lane.limit_seconds is not None
    ):
        raise MonthlyLimitReached(
            float(lane.used_seconds) / SECONDS_PER_HOUR,
            lane.limit_seconds / SECONDS_PER_HOUR,
            lane.resets_at,
        )
    return depth + count
