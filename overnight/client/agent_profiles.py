"""Operations on agent profiles: `client.agent_profiles`."""

import builtins
from collections.abc import Mapping
from typing import Any

from overnight.client.calls import Call, path, read, read_list, send
from overnight.client.operations import D, Group, operation
from overnight.models.execution import AgentProfile, AgentProfileRemoved, NamedAgentProfile
from overnight.models.field_errors import validate


class AgentProfiles(Group[D]):
    """How agents are run; every user reads the profiles, admins change them."""

    @operation
    def list(self) -> Call[builtins.list[NamedAgentProfile]]:
        """Return all agent profiles by name."""
        return read_list(NamedAgentProfile, path("agent-profiles"))

    @operation
    def get(self, name: str) -> Call[NamedAgentProfile]:
        """Return one agent profile."""
        return read(NamedAgentProfile, path("agent-profiles", name))

    @operation
    def set(self, name: str, profile: Mapping[str, Any]) -> Call[NamedAgentProfile]:
        """Add an agent profile, or replace the one of this name; for admins."""
        body = validate(AgentProfile, profile)
        return send(NamedAgentProfile, "PUT", path("admin", "agent-profiles", name), body)

    @operation
    def remove(self, name: str) -> Call[AgentProfileRemoved]:
        """Remove an agent profile; for admins. Existing tasks keep what they have."""
        return send(AgentProfileRemoved, "DELETE", path("admin", "agent-profiles", name))
