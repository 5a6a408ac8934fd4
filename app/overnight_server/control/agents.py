"""Agents outside the deployment: coming, showing themselves, draining, leaving.

Each has a pool to itself, so that what it can do, take and pay for is judged for it alone. Whoever
calls here is the owner; another user's agent looks exactly like none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight.errors import AgentNotFound, AgentOffline
from overnight_server.domain.ids import UserId, new_agent_id
from overnight_server.outcome import presence
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class OutsideCard:
    """Who an agent is and what it can do; without types it takes what its capabilities cover."""

    name: str
    capabilities: Sequence[str] = ()
    types: Sequence[str] = ()
    models: Sequence[str] = ()
    slots: int = 1
    budget_usd: float | None = None
    claim_ttl: timedelta = timedelta(seconds=60)
    stale_after: timedelta = timedelta(seconds=90)
    serves_everyone: bool = False


@dataclass(frozen=True)
class Seat:
    """What the gate must know of an agent that asks for work; `serves` None is everybody."""

    agent_id: str
    pool: str
    serves: UserId | None
    types: Sequence[str]
    is_draining: bool
    claim_ttl: timedelta
    lease: timedelta


def register(db: Db, user_id: UserId, card: OutsideCard) -> str:
    """Announce an agent and return its id; the same name again is the same agent, changed."""
    # By the owner's id: a name can be given up, and whoever took it would take over the pool.
    pool = f"pull:{user_id}/{card.name}"

    def work(tx: Connection) -> str:
        # A pool that nobody knew would not be held by someone who pauses all there are.
        tx.execute(statement("lock_pauses_shared"))
        named = {"user_id": user_id, "name": card.name}
        serves = None if card.serves_everyone else user_id
        tx.execute(statement("ensure_pull_pool"), {"pool": pool, "serves": serves})
        made = tx.execute(
            statement("register_agent"),
            {
                **named,
                "id": new_agent_id(),
                "pool": pool,
                "capabilities": sorted(set(card.capabilities)),
                "types": sorted(set(card.types)),
                "models": list(card.models),
                "slots": card.slots,
                "budget_usd": card.budget_usd,
                "claim_ttl": round(card.claim_ttl.total_seconds()),
                "silence": round(card.stale_after.total_seconds()),
            },
        )
        return str(made.scalar_one())

    agent_id = db.atomically(work)
    lanes.unskip_lanes(db, pool)
    return agent_id


def take_seat(db: Db, user_id: UserId, agent_id: str) -> Seat:
    """Take an agent's sign of life, and return what it may be given."""
    named = {"id": agent_id, "user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("touch_own_agent"), named).one_or_none())
    if row is None:
        _own(db, user_id, agent_id)
        raise AgentOffline
    return Seat(
        agent_id=row.id,
        pool=row.pool,
        serves=None if row.serves is None else UserId(row.serves),
        types=tuple(row.types),
        is_draining=row.status == "draining",
        claim_ttl=timedelta(seconds=row.claim_ttl_seconds),
        lease=timedelta(seconds=row.stale_after_seconds),
    )


def drain(db: Db, user_id: UserId, agent_id: str) -> None:
    """Give an agent nothing new from now on; what it runs it may finish."""
    pool = _own(db, user_id, agent_id)
    named = {"id": agent_id}
    drained = db.atomically(
        lambda tx: tx.execute(statement("drain_own_agent"), named).one_or_none()
    )
    if drained is None:
        raise AgentOffline
    lanes.unskip_lanes(db, pool)


def leave(db: Db, user_id: UserId, agent_id: str) -> None:
    """Take an agent's slots away at once; what it still holds ends with its leases."""
    _own(db, user_id, agent_id)
    presence.leave(db, agent_id)


def _own(db: Db, user_id: UserId, agent_id: str) -> str:
    named = {"id": agent_id, "user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("own_agent"), named).one_or_none())
    if row is None:
        raise AgentNotFound
    return str(row.pool)
