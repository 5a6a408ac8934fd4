"""Pause and resume a user, a pool or everything: running tasks go on, no new task starts."""

from dataclasses import dataclass

from sqlalchemy import Connection

from overnight.errors import PoolNotFound, UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import PauseScope
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class PauseSubject:
    """What to pause or resume: one user in every pool, one pool for every user, or everything."""

    user_id: UserId | None = None
    pool: str | None = None

    @property
    def scope(self) -> PauseScope:
        """Whether a user, a pool or everything is paused."""
        if self.user_id is not None:
            return PauseScope.USER
        return PauseScope.ALL if self.pool is None else PauseScope.POOL

    @property
    def key(self) -> str | None:
        """The user id or pool name in the row of the pause; None for everything."""
        return self.pool if self.user_id is None else str(self.user_id)


EVERYTHING = PauseSubject()


def pause(db: Db, target: PauseSubject, *, actor: str, note: str = "") -> bool:
    """Let no new task start; return False if it was paused already, and only update its note.

    After the commit no claim is made. Claims that were made before may still start. Locks the
    user's lane, the pool or all pools. Raises UserNotFound and PoolNotFound.
    """

    def work(tx: Connection) -> bool:
        _lock(tx, target)
        tx.execute(statement("set_actor"), {"actor": actor})
        inserted = tx.execute(statement("begin_pause"), _params(target, actor) | {"note": note})
        is_new = inserted.one_or_none() is not None
        if not is_new:
            tx.execute(statement("take_over_pause"), _params(target, actor))
        if note and not is_new:
            tx.execute(statement("update_pause_note"), _params(target, actor) | {"note": note})
        _mark(tx, target, paused=True)
        return is_new

    return db.atomically(work)


def resume(db: Db, target: PauseSubject, *, actor: str, own: bool = False) -> bool:
    """End a pause; return False if there was none. Other pauses stay in force.

    With `own` only a pause that the same actor began ends: a user cannot end an operator's pause.
    Locks as `pause` does, and wakes the dispatchers. Raises UserNotFound and PoolNotFound.
    """

    def work(tx: Connection) -> bool:
        _lock(tx, target)
        tx.execute(statement("set_actor"), {"actor": actor})
        params = _params(target, actor) | {"own": own}
        is_ended = tx.execute(statement("end_pause"), params).one_or_none() is not None
        if is_ended or not own:
            _mark(tx, target, paused=False)
            wake_after_commit(tx)
        return is_ended

    return db.atomically(work)


def _lock(tx: Connection, target: PauseSubject) -> None:
    """Take the locks that a claim takes first, so that no claim is in progress meanwhile."""
    if target.user_id is not None:
        lanes.lock(tx, [target.user_id])
        if lanes.read(tx, target.user_id) is None:
            raise UserNotFound
        return
    if target.pool is None:
        tx.execute(statement("lock_all_pools"))
    else:
        tx.execute(statement("lock_pool"), {"pool": target.pool})


def _mark(tx: Connection, target: PauseSubject, *, paused: bool) -> None:
    """Set the flag that the gate reads; a pause of everything has no flag but its row."""
    if target.user_id is not None:
        tx.execute(statement("pause_lane"), {"user_id": target.user_id, "paused": paused})
    elif target.pool is not None:
        params = {"pool": target.pool, "paused": paused}
        if tx.execute(statement("pause_pool"), params).one_or_none() is None:
            raise PoolNotFound(target.pool)


def _params(target: PauseSubject, actor: str) -> dict[str, object]:
    return {"scope": target.scope.value, "key": target.key, "actor": actor}
