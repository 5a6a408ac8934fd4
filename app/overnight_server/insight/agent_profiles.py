"""Agent profiles: read one, or all; every user may, because secrets in them are references."""

from overnight.errors import AgentProfileNotFound
from overnight.models.execution import NamedAgentProfile
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_profiles(db: Db) -> list[NamedAgentProfile]:
    """Return all profiles by name."""
    return _read(db, None)


def get_profile(db: Db, name: str) -> NamedAgentProfile:
    """Return one profile; raise AgentProfileNotFound if there is none of this name."""
    found = _read(db, name)
    if not found:
        raise AgentProfileNotFound(name)
    return found[0]


def _read(db: Db, name: str | None) -> list[NamedAgentProfile]:
    params = {"name": name}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_agent_profiles"), params).mappings().all()
    )
    return [NamedAgentProfile(**row) for row in rows]
