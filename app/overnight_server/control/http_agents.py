"""HTTP agents: pull agents whose tasks the agent driver sends to an address of their own."""

import secrets
from dataclasses import dataclass
from datetime import timedelta

from overnight.errors import InvalidRequest
from overnight_server.control import agents
from overnight_server.control.agents import (
    DEFAULT_CAPS,
    AgentCaps,
    PullAgentDescription,
    RegisterResult,
)
from overnight_server.control.keys import Caller
from overnight_server.outbound.addresses import check_reachable, parse_base
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

SECRET_BYTES = 32
# An agent refuses a request that is older than a minute. A run must not count as lost before that,
# or a task that was read late could be started while another agent runs it.
MIN_LEASE = timedelta(seconds=75)


@dataclass(frozen=True)
class AddedAgent:
    """The registration of an HTTP agent, and the secret that signs requests to it."""

    registration: RegisterResult
    secret: str


def add(
    db: Db,
    caller: Caller,
    agent: PullAgentDescription,
    url: str,
    *,
    secret: str | None = None,
    caps: AgentCaps = DEFAULT_CAPS,
    min_lease: timedelta = MIN_LEASE,
) -> AddedAgent:
    """Add an HTTP agent, or change the agent of this name; without a secret, make one.

    Raises InvalidRequest for a URL that is not an agent's, for a private address unless the caller
    is an operator, for a shorter lease than `min_lease`, and whenever `agents.register` does.
    """
    if agent.stale_after < min_lease:
        legal = f"from {min_lease.total_seconds():.0f} to 3600"
        raise InvalidRequest("lease_seconds", "is too short for an HTTP agent", legal=legal)
    address = parse_base(url)
    if not caller.is_operator:
        check_reachable(address, field="url")
    params = {
        "user_id": caller.user_id,
        "name": agent.name,
        "url": address.url,
        "secret": secret or secrets.token_urlsafe(SECRET_BYTES),
        "private_allowed": caller.is_operator,
    }
    registration = agents.register(db, caller, agent, caps, has_address=True)
    db.atomically(lambda tx: tx.execute(statement("save_http_agent"), params))
    return AddedAgent(registration, str(params["secret"]))
