"""Your agents: HTTP agents, which the service calls, and pull agents; as `client.agents`."""

import builtins
import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from overnight.client.calls import Call, Page, path, read, read_page, send, without_none
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.agents import Ok, RegisteredAgent
from overnight.models.field_errors import validate
from overnight.models.http_agents import HttpAgentAdd, HttpAgentAdded

MAX_NAME = 63


class Agents(Group[D]):
    """Agents outside the deployment; available as `client.agents`."""

    @operation
    def add(
        self,
        url: str,
        *,
        name: str | None = None,
        types: Sequence[str] = (),
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        slots: int | None = None,
        budget_usd: float | None = None,
        lease_seconds: int | None = None,
        secret: str | None = None,
        serves: Literal["me", "everyone"] = "me",
    ) -> Call[HttpAgentAdded]:
        """Add an HTTP agent, or change the agent of this name; the result has its secret.

        The name is made from the URL unless it is given.
        """
        fields = {
            "url": url,
            "name": name or name_of(url),
            "types": builtins.list(types),
            "capabilities": builtins.list(capabilities),
            "models": builtins.list(models),
            "slots": slots,
            "budget_usd": budget_usd,
            "lease_seconds": lease_seconds,
            "secret": secret,
            "serves": serves,
        }
        body = validate(HttpAgentAdd, without_none(fields))
        return send(HttpAgentAdded, "POST", path("agents", "http"), body)

    @iteration
    def list(self, *, limit: int | None = None) -> ItemSteps[RegisteredAgent]:
        """Yield your agents, ordered by name; those with a URL are HTTP agents."""

        def get_page(size: int, cursor: str | None) -> Call[Page[RegisteredAgent]]:
            return read_page(RegisteredAgent, path("agents"), limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def get(self, agent_id: str) -> Call[RegisteredAgent]:
        """Return one of your agents."""
        return read(RegisteredAgent, path("agents", agent_id))

    @operation
    def drain(self, agent_id: str) -> Call[Ok]:
        """Give an agent no new tasks; it may finish what it runs."""
        return send(Ok, "POST", path("agents", agent_id, "drain"))

    @operation
    def remove(self, agent_id: str) -> Call[Ok]:
        """Remove an agent; what an HTTP agent runs is stopped there and given back."""
        return send(Ok, "DELETE", path("agents", agent_id))


def name_of(url: str) -> str:
    """Return a name for the agent at a URL: its host and port.

    >>> name_of("http://127.0.0.1:9000")
    '127.0.0.1-9000'
    """
    netloc = urlsplit(url).netloc.rpartition("@")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", netloc).strip("-._")[:MAX_NAME]
