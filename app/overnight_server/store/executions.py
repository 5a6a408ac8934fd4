"""Reads what decides how commands run: the owner's plan and the agent profiles."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight.models.enums import PlanTier
from overnight_server.domain.execution import Execution, decide, models_of
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import COMMAND_LIMITS
from overnight_server.store.statements import statement


def decide_executions(
    tx: Connection,
    user_id: UserId,
    asking: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> list[Execution]:
    """Return how the commands of a user's tasks run, each by what it asks for and its spec.

    Raises InvalidRequest for an unknown agent profile, and for what plan or profile do not allow.
    """
    names = sorted({asked["agent"] for asked, _ in asking if asked["agent"] is not None})
    params = {"user_id": user_id, "names": names}
    row = tx.execute(statement("facts_for_execution"), params).one()
    plan, profiles = COMMAND_LIMITS[PlanTier(row.plan_tier)], row.profiles or {}
    return [
        decide(asked, _profile(asked["agent"], profiles), plan, models_of(spec))
        for asked, spec in asking
    ]


def _profile(name: str | None, profiles: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if name is None:
        return None
    if name not in profiles:
        legal = "a name that `overnight agent-profile list` shows"
        raise InvalidRequest("agent", f"there is no agent profile {name}", legal=legal)
    profile: Mapping[str, Any] = profiles[name]
    return profile
