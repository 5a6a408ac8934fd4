"""Pausing and resuming: a user, a pool, or everything. What runs goes on; nothing new starts."""

from dataclasses import dataclass

from sqlalchemy import Connection

from overnight.errors import PoolNotFound, UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import Scope
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class Target:
    """What is to be paused or resumed: one user in every pool, one pool for every user, or all."""

    user_id: UserId | None = None
    pool: str | None = None

    @property
    def scope(self) -> Scope:
        """How far it reaches."""
        if self.user_id is not None:
            return Scope.USER
        return Scope.ALL if self.pool is None else Scope.POOL

    @property
    def key(self) -> str | None:
        """How the record of pauses names it."""
        return self.pool if self.user_id is None else str(self.user_id)


EVERYTHING = Target()


def pause(db: Db, target: Target, *, actor: str, note: str = "") -> bool:
    """Let nothing new start; False if it was paused already: only a new note then takes its place.

    A claim under way ends first: after the commit no claim is made. Claims made before may still
    start, and runs go on.
    """

    def work(tx: Connection) -> bool:
        _hold(tx, target)
        tx.execute(statement("set_actor"), {"actor": actor})
        begun = tx.execute(statement("begin_pause"), _named(target, actor) | {"note": note})
        is_new = begun.one_or_none() is not None
        if not is_new:
            tx.execute(statement("take_over_pause"), _named(target, actor))
        if note and not is_new:
            tx.execute(statement("update_pause_note"), _named(target, actor) | {"note": note})
        _mark(tx, target, paused=True)
        return is_new

    return db.atomically(work)


def resume(db: Db, target: Target, *, actor: str, own: bool = False) -> bool:
    """Let work start again; False if it was not paused. Other pauses stay in force.

    With `own` only a pause that the same actor began is ended: no user ends an operator's.
    """

    def work(tx: Connection) -> bool:
        _hold(tx, target)
        tx.execute(statement("set_actor"), {"actor": actor})
        named = _named(target, actor) | {"own": own}
        is_ended = tx.execute(statement("end_pause"), named).one_or_none() is not None
        if is_ended or not own:
            _mark(tx, target, paused=False)
            wake_after_commit(tx)
        return is_ended

    return db.atomically(work)


def _hold(tx: Connection, target: Target) -> None:
    """Take the locks a claim takes first, so that none is half way through meanwhile."""
    if target.user_id is not None:
        lanes.lock(tx, [target.user_id])
        if lanes.read(tx, target.user_id) is None:
            raise UserNotFound
        return
    if target.pool is None:
        tx.execute(statement("lock_pauses"))
    known = tx.execute(statement("lock_pools"), {"pool": target.pool}).scalars().all()
    if target.pool is not None and not known:
        raise PoolNotFound(target.pool)


def _mark(tx: Connection, target: Target, *, paused: bool) -> None:
    """Set the flag that the gate reads; for everything the record itself is read."""
    if target.user_id is not None:
        tx.execute(statement("pause_lane"), {"user_id": target.user_id, "paused": paused})
    elif target.pool is not None:
        tx.execute(statement("pause_pool"), {"pool": target.pool, "paused": paused})


def _named(target: Target, actor: str) -> dict[str, object]:
    return {"scope": target.scope.value, "key": target.key, "actor": actor}
