"""Agent profiles: every user reads them, admins change them."""

from typing import Annotated

from fastapi import APIRouter, Path

from overnight.models.execution import AgentProfile, AgentProfileRemoved, NamedAgentProfile
from overnight_server.api.http.authentication import Admin, Reader
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control import agent_profiles
from overnight_server.insight.agent_profiles import get_profile, list_profiles

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["agents"])
NAME_PATTERN = "^[a-z0-9][a-z0-9_.-]{0,63}$"
ProfileName = Annotated[str, Path(pattern=NAME_PATTERN)]


@router.get("/agent-profiles")
def list_agent_profiles(deps: Injected, _caller: Reader) -> list[NamedAgentProfile]:
    """List the agent profiles that a task can name as its agent."""
    return list_profiles(deps.db)


@router.get("/agent-profiles/{profile}")
def read_agent_profile(profile: str, deps: Injected, _caller: Reader) -> NamedAgentProfile:
    """Return one agent profile."""
    return get_profile(deps.db, profile)


@router.put("/admin/agent-profiles/{profile}", tags=["admin"])
def set_agent_profile(
    profile: ProfileName, body: AgentProfile, deps: Injected, caller: Admin
) -> NamedAgentProfile:
    """Add an agent profile, or replace the one of this name; existing tasks keep what they have."""
    agent_profiles.set_profile(deps.admin_db, profile, body, actor=f"user:{caller.user_id}")
    return get_profile(deps.admin_db, profile)


@router.delete("/admin/agent-profiles/{profile}", tags=["admin"])
def remove_agent_profile(profile: str, deps: Injected, caller: Admin) -> AgentProfileRemoved:
    """Remove an agent profile: no new task can name it."""
    agent_profiles.remove_profile(deps.admin_db, profile, actor=f"user:{caller.user_id}")
    return AgentProfileRemoved(name=profile)
