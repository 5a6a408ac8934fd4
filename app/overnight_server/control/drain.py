"""Draining a worker: it finishes what it runs and is given nothing new."""

from sqlalchemy import Connection

from overnight.errors import WorkerNotFound
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def drain(db: Db, name: str) -> str:
    """Take a worker's slots out of the gate while its runs finish; return its whole id.

    `name` is its id, or a beginning or an end of it that no other living worker has. The worker
    hears of it with its next sign of life and then takes no more messages.
    """
    return _change(db, name, draining=True)


def undrain(db: Db, name: str) -> str:
    """Give a draining worker work again; return its whole id."""
    return _change(db, name, draining=False)


def _change(db: Db, name: str, *, draining: bool) -> str:
    agent_id, pool = db.atomically(lambda tx: _set(tx, name, draining=draining))
    # What it could or could not do changes what its pool may promise.
    lanes.unskip_lanes(db, pool)
    db.wake()
    return agent_id


def _set(tx: Connection, name: str, *, draining: bool) -> tuple[str, str]:
    found = tx.execute(statement("lock_agents"), {"name": name}).all()
    meant = [agent for agent in found if agent.id == name] or found
    if len(meant) != 1 or not name:
        raise WorkerNotFound(name, [agent.id for agent in meant])
    [agent] = meant
    if draining:
        tx.execute(statement("drain_agent"), {"id": agent.id})
    else:
        tx.execute(statement("undrain_agent"), {"id": agent.id})
    return agent.id, agent.pool
