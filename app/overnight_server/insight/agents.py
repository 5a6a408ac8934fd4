"""A user's pull agents: programs outside the deployment that claim tasks over HTTP."""

from typing import Any

from overnight.errors import AgentNotFound
from overnight.models.agents import RegisteredAgent
from overnight_server.domain.ids import UserId
from overnight_server.insight.workers import current_status
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_agents(
    db: Db, user_id: UserId, *, after: str | None = None, limit: int
) -> list[RegisteredAgent]:
    """Return the user's first agents after a name, ordered by name, at most `limit`."""
    return _read_agents(db, {"user_id": user_id, "agent_id": None, "after": after, "limit": limit})


def get_agent(db: Db, user_id: UserId, agent_id: str) -> RegisteredAgent:
    """Return one of the user's agents; raise AgentNotFound if there is no such agent."""
    agents = _read_agents(db, {"user_id": user_id, "agent_id": agent_id, "after": None, "limit": 1})
    if not agents:
        raise AgentNotFound
    return agents[0]


def _read_agents(db: Db, params: dict[str, object]) -> list[RegisteredAgent]:
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_own_agents"), params).mappings().all(),
        all_users=True,
    )
    return [_agent(dict(row)) for row in rows]


def _agent(row: dict[str, Any]) -> RegisteredAgent:
    status = current_status(row["status"], is_alive=row.pop("is_alive"))
    return RegisteredAgent(
        **{
            **row,
            "status": status,
            "serves": "everyone" if row.pop("serves_everyone") else "me",
            "lease_seconds": row.pop("stale_after_seconds"),
        }
    )
