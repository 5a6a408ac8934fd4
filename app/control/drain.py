"""Draining a worker: it finishes what it runs and is given nothing new."""

from sqlalchemy import Connection

from app.domain.errors import WorkerNotFound
from app.store.db import Db
from app.store.statements import statement


def drain(db: Db, name: str) -> str:
    """Take a worker's slots out of the gate while its runs finish; return its whole id.

    `name` is its id, or a beginning or an end of it that no other living worker has. The worker
    hears of it with its next sign of life and then takes no more messages.
    """
    return db.atomically(lambda tx: _set(tx, name, draining=True))


def undrain(db: Db, name: str) -> str:
    """Give a draining worker work again; return its whole id."""
    return db.atomically(lambda tx: _set(tx, name, draining=False))


def _set(tx: Connection, name: str, *, draining: bool) -> str:
    found = tx.execute(statement("lock_agents"), {"name": name}).all()
    meant = [agent for agent in found if agent.id == name] or found
    if len(meant) != 1 or not name:
        raise WorkerNotFound(name, [agent.id for agent in meant])
    [agent] = meant
    if draining:
        tx.execute(statement("drain_agent"), {"id": agent.id})
    else:
        tx.execute(statement("undrain_agent"), {"id": agent.id})
    # What it could or could not do changes what its pool may promise.
    tx.execute(statement("wake_lanes"), {"pool": agent.pool})
    return str(agent.id)
