"""Workers coming, staying and leaving: the slots the gate may fill."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class AgentCard:
    """Who a worker is and what it can do; the id is new with every boot."""

    id: str
    pool: str
    capabilities: Sequence[str]
    slots: int
    kind: str = "celery"
    types: Sequence[str] = ()
    budget_usd: float | None = None


def join(db: Db, card: AgentCard) -> str:
    """Announce a worker and return its status; lanes that pools gave up on are looked into again.

    One that was draining before it was away is draining still.
    """

    def work(tx: Connection) -> str:
        # A pool that nobody knew would not be held by someone who pauses all there are.
        tx.execute(statement("lock_pauses_shared"))
        tx.execute(statement("ensure_pool"), {"pool": card.pool})
        joined = tx.execute(
            statement("register_worker"),
            {
                "id": card.id,
                "kind": card.kind,
                "pool": card.pool,
                "capabilities": sorted(set(card.capabilities)),
                "types": sorted(set(card.types)),
                "slots": card.slots,
                "budget_usd": card.budget_usd,
            },
        )
        tx.execute(statement("unskip_all_lanes"))
        return str(joined.scalar_one())

    status = db.atomically(work)
    # Which types are left to which pool depends on what all workers know.
    lanes.unskip_lanes(db)
    return status


def beat(db: Db, agent_id: str, *, liveness: timedelta | None = None) -> str | None:
    """Say that a worker lives; return `active` or `draining`, or None if it should join again.

    The deployment does not know a worker it has written off, nor, with a `liveness`, one that was
    silent for longer.
    """
    known = {"id": agent_id, "liveness": liveness and liveness.total_seconds()}
    row = db.atomically(lambda tx: tx.execute(statement("heartbeat_agent"), known).one_or_none())
    return None if row is None else str(row.status)


def heartbeat_claim_holder(db: Db, claim: Claim) -> None:
    """Record that the pull agent holding a claim lives; built-in workers record it themselves."""
    named = {"task_id": claim.task_id, "epoch": claim.epoch}
    db.atomically(lambda tx: tx.execute(statement("heartbeat_claim_holder"), named))


def leave(db: Db, agent_id: str) -> None:
    """Take a worker's slots away at once, because it is shutting down.

    What it could not do held its whole pool back, and what only it knew was left to it by the other
    pools: all look into every lane again.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("mark_worker_offline"), {"id": agent_id})
        tx.execute(statement("unskip_all_lanes"))

    db.atomically(work)
    lanes.unskip_lanes(db)
