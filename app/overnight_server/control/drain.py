"""Drain a worker: it finishes its runs and gets no new ones."""

from sqlalchemy import Connection

from overnight.errors import WorkerNotFound
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def drain(db: Db, name: str) -> str:
    """Give a worker no new tasks while its runs finish; return its full id.

    `name` is the worker's id, or a prefix or suffix of it that matches no other live worker. The
    worker reads the change with its next heartbeat and then takes no more messages. Locks the
    matching workers; then, in a transaction of its own, lets its pool consider skipped lanes again,
    and wakes the dispatchers. Raises WorkerNotFound if the name matches no worker, or several.
    """
    return _set_draining(db, name, draining=True)


def undrain(db: Db, name: str) -> str:
    """Give a draining worker new tasks again; return its full id.

    Locks, wakes and raises as `drain` does.
    """
    return _set_draining(db, name, draining=False)


def _set_draining(db: Db, name: str, *, draining: bool) -> str:
    agent_id, pool = db.atomically(lambda tx: _mark(tx, name, draining=draining))
    # The capabilities of the pool have changed, so lanes that it skipped are checked again.
    lanes.unskip_lanes(db, pool)
    db.wake()
    return agent_id


def _mark(tx: Connection, name: str, *, draining: bool) -> tuple[str, str]:
    matches = tx.execute(statement("lock_agents"), {"name": name}).all()
    agents = [agent for agent in matches if agent.id == name] or matches
    if len(agents) != 1 or not name:
        raise WorkerNotFound(name, [agent.id for agent in agents])
    [agent] = agents
    if draining:
        tx.execute(statement("drain_agent"), {"id": agent.id})
    else:
        tx.execute(statement("undrain_agent"), {"id": agent.id})
    return agent.id, agent.pool
