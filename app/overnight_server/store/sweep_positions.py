"""Where the next pass of a sweep continues, for sweeps whose passes do a part of the work each."""

from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def sweep_position(db: Db, sweep: str) -> str | None:
    """Return the position that the last pass stored; None at the start of a round."""
    params = {"name": sweep}
    position: str | None = db.atomically(
        lambda tx: tx.execute(statement("sweep_position"), params).scalar()
    )
    return position


def set_sweep_position(db: Db, sweep: str, position: str | None) -> None:
    """Store where the next pass continues; None: at the start."""
    params = {"name": sweep, "position": position}
    db.atomically(lambda tx: tx.execute(statement("set_sweep_position"), params))
