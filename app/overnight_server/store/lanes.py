"""Lanes: lock and read them; bring billing cycle, night window and night budget up to date."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.ids import UserId
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.store import windows
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class LaneView:
    """A lane as intake reads it; None means no limit.

    `total_depth` is the number of waiting tasks of all users, or None if it was not requested.
    """

    waiting: int
    active: int
    ready: int
    used_seconds: float
    reserved_seconds: int
    limit_seconds: int | None
    resets_at: datetime
    max_pending: int | None
    max_tasks_per_dag: int | None
    on_exhausted: str
    total_depth: int | None

    @property
    def is_exhausted(self) -> bool:
        """Whether the hours of the billing month are used up."""
        return self.limit_seconds is not None and self.used_seconds >= self.limit_seconds


LANE_FIELDS = tuple(field.name for field in fields(LaneView))


def lock(tx: Connection, users: Iterable[UUID]) -> None:
    """Lock these users' lanes until the transaction ends; before any of their tasks is locked."""
    execute_batch(tx, lock_call(users))


def lock_for_actor(tx: Connection, user_id: UUID, actor: str) -> None:
    """Lock one user's lane, as `lock` does, and record the actor in the transaction's events."""
    execute_batch(tx, lock_call([user_id]), StatementCall("set_actor", {"actor": actor}))


def lock_call(users: Iterable[UUID]) -> StatementCall:
    """Return the call that locks these users' lanes, for a batch with the statements after it."""
    return StatementCall("lock_lanes", {"users": sorted(set(users))})


def read(
    tx: Connection, user_id: UserId, *, hold: bool = False, with_depth: bool = False
) -> LaneView | None:
    """Return a user's lane with billing cycle and window brought up to date; None if unknown.

    With `hold` the lane is locked until the transaction ends, as `lock` does.
    """
    read_call = StatementCall("read_lane", {"user_id": user_id, "with_depth": with_depth})
    locks = [lock_call([user_id])] if hold else []
    rows = execute_batch(tx, *locks, read_call)
    if rows and rows[0].is_due:
        # The sweep may be late or not running; every reader brings a due lane up to date.
        lock(tx, [user_id])
        start_billing_cycles(tx, [user_id])
        windows.refresh_windows(tx, [user_id])
        rows = execute_batch(tx, read_call)
    return LaneView(**{name: getattr(rows[0], name) for name in LANE_FIELDS}) if rows else None


def start_billing_cycles(tx: Connection, users: Iterable[UUID]) -> list[UUID]:
    """Start the current billing month on those of these locked lanes whose month has ended."""
    user_ids = sorted(set(users))
    end_nights(tx, user_ids)
    rows = tx.execute(statement("start_billing_cycles"), {"users": user_ids})
    return [row.user_id for row in rows]


def end_nights(tx: Connection, users: Iterable[UUID]) -> None:
    """Reset the night budget of those of these locked lanes whose night has ended.

    Tasks that waited for a new night become ready.
    """
    params = {"users": sorted(set(users))}
    ended = tx.execute(statement("end_nights"), params).scalars().all()
    if ended:
        tx.execute(
            statement("release_night_waiters"),
            {
                "users": list(ended),
                "sources": sources(LifecycleEvent.UNBLOCK),
                "target": target(LifecycleEvent.UNBLOCK),
            },
        )


@dataclass(frozen=True)
class RefreshedLanes:
    """The result of one refresh.

    `due` is the number of lanes handled, `cycles` the users with a new billing month, `windows` the
    users whose night window opened or closed.
    """

    due: int = 0
    cycles: Sequence[UUID] = ()
    windows: Sequence[UUID] = ()


def refresh_due_lanes(tx: Connection, limit: int) -> RefreshedLanes:
    """Bring billing month, night window and night budget of up to `limit` due lanes up to date."""
    due = tx.execute(statement("lock_due_lanes"), {"limit": limit}).all()
    ended_cycles = [lane.user_id for lane in due if lane.month_is_over]
    ended_nights = [lane.user_id for lane in due if lane.night_is_over]
    if ended_nights:
        end_nights(tx, ended_nights)
    changed_windows = [lane.user_id for lane in due if lane.window_changes]
    if changed_windows:
        windows.refresh_windows(tx, changed_windows)
    cycles = start_billing_cycles(tx, ended_cycles) if ended_cycles else ()
    return RefreshedLanes(len(due), cycles, changed_windows)


def unskip_lane(tx: Connection, user_id: UUID) -> None:
    """Let every pool consider a locked lane again, because something about its tasks changed."""
    tx.execute(statement("unskip_lane"), {"user_id": user_id})


def unskip_lanes(db: Db, pool: str | None = None) -> None:
    """Let a pool, or all pools, consider every lane again after its workers changed.

    A claim that runs at this moment may still skip lanes for what the old workers could do, so the
    first transaction waits for the pool's lock. The lanes are updated in a second transaction,
    because nobody who holds a pool may wait for a lane.
    """
    if pool is None:
        db.run_batch(StatementCall("lock_all_pools"))
        db.run_batch(StatementCall("unskip_all_lanes"))
    else:
        db.run_batch(StatementCall("lock_pool", {"pool": pool}))
        db.run_batch(StatementCall("unskip_lanes_of_pool", {"pool": pool}))


def depth(tx: Connection) -> int:
    """Return how many tasks of all users are waiting."""
    return int(execute_batch(tx, StatementCall("depth"))[0].waiting)


def locked_depth(tx: Connection) -> int:
    """Return how many tasks of all users are waiting; other callers of this function wait."""
    return int(execute_batch(tx, StatementCall("lock_depth"), StatementCall("depth"))[0].waiting)
