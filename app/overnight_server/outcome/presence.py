"""Workers join, send heartbeats and leave; the gate fills the slots of those that are present."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class WorkerDescription:
    """A worker's id, which is new with every start, its slots and what it can run."""

    id: str
    pool: str
    capabilities: Sequence[str]
    slots: int
    kind: str = "celery"
    # The types it has handlers for; None accepts every type.
    types: Sequence[str] | None = None
    budget_usd: float | None = None


def join(db: Db, worker: WorkerDescription) -> str:
    """Register a worker and return its status; pools check the lanes that they skipped again.

    A worker that was draining before it left is still draining.
    """

    def work(tx: Connection) -> str:
        # Lanes are locked before agents, as in a settle that pays from an agent's budget.
        tx.execute(statement("unskip_all_lanes"))
        tx.execute(statement("ensure_pool"), {"pool": worker.pool})
        registered = tx.execute(
            statement("register_worker"),
            {
                "id": worker.id,
                "kind": worker.kind,
                "pool": worker.pool,
                "capabilities": sorted(set(worker.capabilities)),
                "types": None if worker.types is None else sorted(set(worker.types)),
                "slots": worker.slots,
                "budget_usd": worker.budget_usd,
            },
        )
        return str(registered.scalar_one())

    status = db.atomically(work)
    lanes.unskip_lanes(db)
    return status


def record_heartbeat(
    db: Db,
    agent_id: str,
    *,
    liveness: timedelta | None = None,
    slots: int | None = None,
    dropped_messages: int = 0,
) -> str | None:
    """Record a worker's heartbeat; return `active` or `draining`, or None if it must join again.

    A worker must join again after it was retired, with a `liveness` after a longer silence, and
    with `slots` if its row has another number of them. `dropped_messages` is how many messages the
    worker has dropped since its start.
    """
    params = {
        "id": agent_id,
        "liveness": liveness and liveness.total_seconds(),
        "slots": slots,
        "dropped_messages": dropped_messages,
    }
    row = db.atomically(lambda tx: tx.execute(statement("heartbeat_agent"), params).one_or_none())
    return None if row is None else str(row.status)


def mark_deaf(db: Db, agent_id: str) -> None:
    """Record that a worker reads no messages; it drains until it starts anew."""
    db.atomically(lambda tx: tx.execute(statement("mark_worker_deaf"), {"id": agent_id}))


def heartbeat_claim_holder(db: Db, claim: Claim) -> None:
    """Record a heartbeat of the pull agent that holds a claim."""
    params = {"task_id": claim.task_id, "epoch": claim.epoch}
    db.atomically(lambda tx: tx.execute(statement("heartbeat_claim_holder"), params))


def leave(db: Db, agent_id: str) -> None:
    """Remove a worker's slots at once, because it shuts down.

    All pools check every lane again: other workers of its pool may be able to do more.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("unskip_all_lanes"))
        tx.execute(statement("mark_worker_offline"), {"id": agent_id})

    db.atomically(work)
    lanes.unskip_lanes(db)
