"""Reads what decides how commands run: the owner's plan and the agent profiles."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight.models.enums import PlanTier
from overnight_server.domain.execution import Execution, decide, models_of
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import COMMAND_LIMITS
from overnight_server.store.statements import statement

# How many profiles a message names.
MAX_NAMES: Final = 5


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
    for name in names:
        if name not in profiles:
            raise InvalidRequest(
                "agent", f"there is no agent profile {name}", legal=_nearest_names(tx, name)
            )
    return [
        decide(asked, profiles.get(asked["agent"]), plan, models_of(spec)) for asked, spec in asking
    ]


def _nearest_names(tx: Connection, name: str) -> str:
    """Return the names of existing profiles that are like a name, or some of them."""
    rows = tx.execute(statement("view_agent_profiles"), {"name": None})
    names = [row.name for row in rows]
    near = difflib.get_close_matches(name, names, MAX_NAMES) or names[:MAX_NAMES]
    return ", ".join(near) or "none yet; an admin adds one with `overnight agent-profile add`"
