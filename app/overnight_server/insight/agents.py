"""A user's agents outside the deployment, as the user sees them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from overnight.errors import AgentNotFound
from overnight_server.domain.ids import UserId
from overnight_server.insight.workers import SILENT
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class AgentView:
    """One agent; `status` is active, draining, silent or offline."""

    id: str
    name: str
    pool: str
    status: str
    serves: Literal["me", "everyone"]
    capabilities: list[str]
    types: list[str]
    models: list[str]
    slots: int
    busy: int
    budget_remaining_usd: float | None
    claim_ttl_seconds: int
    lease_seconds: int
    joined_at: datetime
    last_seen_at: datetime


def list_agents(db: Db, user_id: UserId) -> list[AgentView]:
    """Return a user's agents by name."""
    return _views(db, user_id, None)


def get_agent(db: Db, user_id: UserId, agent_id: str) -> AgentView:
    """Return one of a user's agents; another user's looks exactly like none."""
    found = _views(db, user_id, agent_id)
    if not found:
        raise AgentNotFound
    return found[0]


def _views(db: Db, user_id: UserId, agent_id: str | None) -> list[AgentView]:
    asked = {"user_id": user_id, "agent_id": agent_id}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_own_agents"), asked).mappings().all(),
        all_users=True,
    )
    return [_view(dict(row)) for row in rows]


def _view(row: dict[str, Any]) -> AgentView:
    is_alive = row.pop("is_alive")
    if row["status"] != "offline" and not is_alive:
        row["status"] = SILENT
    usd = row.pop("budget_remaining_usd")
    return AgentView(
        serves="everyone" if row.pop("serves_everyone") else "me",
        lease_seconds=row.pop("stale_after_seconds"),
        budget_remaining_usd=None if usd is None else float(usd),
        **row,
    )
