"""Accept findings of the audit that cannot be repaired; the audit log records who did it."""

from sqlalchemy import Connection

from overnight.errors import FindingNotFound
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def accept_finding(db: Db, finding_id: int, *, actor: str, note: str = "") -> None:
    """Let a finding be: it is not reported again, however long the rows stay as they are.

    Raises FindingNotFound if no open finding has this number.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"finding_id": finding_id, "actor": actor, "note": note}
        if tx.execute(statement("accept_finding"), params).one_or_none() is None:
            raise FindingNotFound(finding_id)

    db.atomically(work)
