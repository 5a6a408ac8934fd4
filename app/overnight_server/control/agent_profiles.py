"""Add, replace and remove agent profiles; for operators."""

from sqlalchemy import Connection

from overnight.errors import AgentProfileNotFound
from overnight.models.execution import AgentProfile
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def set_profile(db: Db, name: str, profile: AgentProfile, *, actor: str) -> None:
    """Add a profile or replace the one of this name; tasks that exist already keep theirs."""

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"name": name, "profile": profile.model_dump_json(exclude_none=True)}
        tx.execute(statement("set_agent_profile"), params)

    db.atomically(work)


def remove_profile(db: Db, name: str, *, actor: str) -> None:
    """Remove a profile: no new task can name it. Raises AgentProfileNotFound."""

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        if tx.execute(statement("remove_agent_profile"), {"name": name}).one_or_none() is None:
            raise AgentProfileNotFound(name)

    db.atomically(work)
