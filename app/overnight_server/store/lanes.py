"""Lanes: taking a user's mutex, beginning a new billing month, turning a night window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.ids import UserId
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.store import windows
from overnight_server.store.batched_statements import Call, ask
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class LaneView:
    """What intake must know of a lane; the limits None mean without limit.

    `total_depth` is how much waits in the whole deployment, if it was asked.
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
        """Whether the month's hours are used up."""
        return self.limit_seconds is not None and self.used_seconds >= self.limit_seconds


SEEN = tuple(part.name for part in fields(LaneView))


def lock(tx: Connection, users: Iterable[UUID]) -> None:
    """Hold these users' lanes until the transaction ends; first, before any of their tasks."""
    ask(tx, locking(users))


def locking(users: Iterable[UUID]) -> Call:
    """Return the call that holds these users' lanes, to travel with what comes next."""
    return Call("lock_lanes", {"users": sorted(set(users))})


def read(
    tx: Connection, user_id: UserId, *, hold: bool = False, with_depth: bool = False
) -> LaneView | None:
    """Return a user's lane as it is now, month and window, or None for an unknown user.

    With `hold` it is the caller's until the transaction ends, as `lock` makes it.
    """
    reading = Call("read_lane", {"user_id": user_id, "with_depth": with_depth})
    first = [locking([user_id])] if hold else []
    rows = ask(tx, *first, reading)
    if rows and rows[0].is_due:
        # Right even if beat never ran: whoever looks first begins the month, turns the window.
        lock(tx, [user_id])
        roll(tx, [user_id])
        windows.turn(tx, [user_id])
        rows = ask(tx, reading)
    return LaneView(**{name: getattr(rows[0], name) for name in SEEN}) if rows else None


def roll(tx: Connection, users: Iterable[UUID]) -> list[UUID]:
    """Begin the current billing month for those of these locked lanes whose month is over."""
    named = sorted(set(users))
    end_nights(tx, named)
    rolled = tx.execute(statement("roll_lanes"), {"users": named})
    return [row.user_id for row in rolled]


def end_nights(tx: Connection, users: Iterable[UUID]) -> None:
    """Close the nights that are over of these locked lanes; who waited for a new one goes on."""
    named = {"users": sorted(set(users))}
    over = tx.execute(statement("end_nights"), named).scalars().all()
    if over:
        tx.execute(
            statement("begin_again"),
            {
                "users": list(over),
                "sources": sources(Event.UNBLOCK),
                "target": target(Event.UNBLOCK),
            },
        )


@dataclass(frozen=True)
class Rolled:
    """Lanes that were due, and what came due in them: a month's end, a window's turn, or both."""

    due: int = 0
    months: Sequence[UUID] = ()
    windows: Sequence[UUID] = ()


def roll_due(tx: Connection, limit: int) -> Rolled:
    """Bring up to `limit` lanes to the present: their billing month, night window and money."""
    due = tx.execute(statement("lock_due_lanes"), {"limit": limit}).all()
    over = [lane.user_id for lane in due if lane.month_is_over]
    nights = [lane.user_id for lane in due if lane.night_is_over]
    if nights:
        end_nights(tx, nights)
    turning = [lane.user_id for lane in due if lane.window_turns]
    if turning:
        windows.turn(tx, turning)
    return Rolled(len(due), roll(tx, over) if over else (), turning)


def wake(tx: Connection, user_id: UUID) -> None:
    """Have every pool look into a locked lane again: something it waited for has changed."""
    tx.execute(statement("wake_lane"), {"user_id": user_id})


def unskip_lanes(db: Db, pool: str | None = None) -> None:
    """Have a pool, or all, look into every lane again, once a change of workers is committed.

    A pass under way may still set lanes aside for what the workers could do before, so it is
    waited for. Only then are the lanes woken, apart: whoever holds a pool waits for no lane.
    """
    db.atomically(lambda tx: tx.execute(statement("lock_pools"), {"pool": pool}))
    if pool is None:
        db.atomically(lambda tx: tx.execute(statement("wake_all_lanes")))
    else:
        db.atomically(lambda tx: tx.execute(statement("wake_lanes"), {"pool": pool}))


def depth(tx: Connection) -> int:
    """Return how many tasks wait in the whole deployment."""
    return int(ask(tx, Call("depth"))[0].waiting)


def depth_alone(tx: Connection) -> int:
    """Return how many tasks of all users wait; others cannot count until this transaction ends."""
    return int(ask(tx, Call("lock_depth"), Call("depth"))[0].waiting)
