"""Pull agents, which run outside the deployment: register, ask for work, drain, leave.

Each agent has a pool of its own, so the gate checks capabilities, types and budget of it alone. The
caller is the owner; another user's agent raises AgentNotFound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight.errors import AgentNotFound, AgentOffline
from overnight_server.domain.ids import UserId, new_agent_id
from overnight_server.outcome import presence
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class PullAgentCard:
    """An agent's name, slots and what it can run; without types it accepts every type."""

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
class AgentPlace:
    """What the gate needs to know of an agent that asks for work; `serves` None means all users."""

    agent_id: str
    pool: str
    serves: UserId | None
    types: Sequence[str]
    is_draining: bool
    claim_ttl: timedelta
    lease: timedelta


def register(db: Db, user_id: UserId, card: PullAgentCard) -> str:
    """Register an agent and return its id; the same name again updates the same agent."""
    # Named by the owner's id: a user's name can pass to another user, and the pool must not.
    pool = f"pull:{user_id}/{card.name}"

    serves = None if card.serves_everyone else user_id
    # A transaction of its own: one that holds the row of a pool must not wait for an agent.
    db.run_batch(StatementCall("ensure_pull_pool", {"pool": pool, "serves": serves}))

    def work(tx: Connection) -> str:
        registered = tx.execute(
            statement("register_agent"),
            {
                "user_id": user_id,
                "name": card.name,
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
        return str(registered.scalar_one())

    agent_id = db.atomically(work)
    lanes.unskip_lanes(db, pool)
    return agent_id


def record_poll(db: Db, user_id: UserId, agent_id: str) -> AgentPlace:
    """Record that an agent asked for work, and return what the gate needs to know of it."""
    params = {"id": agent_id, "user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("touch_own_agent"), params).one_or_none())
    if row is None:
        _pool_of_own_agent(db, user_id, agent_id)
        raise AgentOffline
    return AgentPlace(
        agent_id=row.id,
        pool=row.pool,
        serves=None if row.serves is None else UserId(row.serves),
        types=tuple(row.types),
        is_draining=row.status == "draining",
        claim_ttl=timedelta(seconds=row.claim_ttl_seconds),
        lease=timedelta(seconds=row.stale_after_seconds),
    )


def drain(db: Db, user_id: UserId, agent_id: str) -> None:
    """Give an agent no new tasks; it may finish what it runs."""
    pool = _pool_of_own_agent(db, user_id, agent_id)
    params = {"id": agent_id}
    drained = db.atomically(
        lambda tx: tx.execute(statement("drain_own_agent"), params).one_or_none()
    )
    if drained is None:
        raise AgentOffline
    lanes.unskip_lanes(db, pool)


def leave(db: Db, user_id: UserId, agent_id: str) -> None:
    """Remove an agent's slots at once; claims that it still holds end with their leases."""
    _pool_of_own_agent(db, user_id, agent_id)
    presence.leave(db, agent_id)


def _pool_of_own_agent(db: Db, user_id: UserId, agent_id: str) -> str:
    params = {"id": agent_id, "user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("own_agent"), params).one_or_none())
    if row is None:
        raise AgentNotFound
    return str(row.pool)
