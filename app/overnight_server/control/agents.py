"""Pull agents, which run outside the deployment: register, ask for work, drain, leave.

Each agent has a pool of its own, so the gate checks capabilities, types and budget of it alone. The
caller is the owner; another user's agent raises AgentNotFound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from sqlalchemy import Connection, Row

from overnight.errors import AgentNotFound, AgentOffline, InvalidRequest
from overnight_server.control.keys import Caller
from overnight_server.domain.capabilities import HTTP, RUNNER_PREFIX, runner_capability
from overnight_server.domain.ids import UserId, new_agent_id
from overnight_server.outcome import presence
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# A user may have this many names of agents for each agent that may be online.
NAMES_PER_AGENT = 10


@dataclass(frozen=True)
class PullAgentDescription:
    """An agent's name, slots and what it can run; without types it accepts every type."""

    name: str
    capabilities: Sequence[str] = ()
    types: Sequence[str] = ()
    models: Sequence[str] = ()
    slots: int = 1
    budget_usd: float | None = None
    claim_ttl: timedelta = timedelta(seconds=60)
    stale_after: timedelta = timedelta(seconds=90)
    serves_everyone: bool = False


@dataclass(frozen=True)
class AgentCaps:
    """How many agents a user may have online, and how many types and capabilities each may have."""

    agents: int = 100
    types: int = 100
    capabilities: int = 100

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits on pull agents that the settings give."""
        return cls(
            settings.agents_max_per_user, settings.agent_types_max, settings.agent_capabilities_max
        )

    @property
    def names(self) -> int:
        """How many names of agents a user may have, those of offline agents included."""
        return NAMES_PER_AGENT * self.agents

    def check(self, agent: PullAgentDescription) -> None:
        """Raise InvalidRequest if an agent declares more than it may."""
        for field, values, most in (
            ("types", agent.types, self.types),
            ("capabilities", agent.capabilities, self.capabilities),
        ):
            if len(values) > most:
                raise InvalidRequest(field, f"has {len(values)} items", legal=f"at most {most}")


DEFAULT_CAPS = AgentCaps()


@dataclass(frozen=True)
class RegisterResult:
    """The id of a registered agent, and whether its name is new."""

    agent_id: str
    is_new: bool


@dataclass(frozen=True)
class AgentRegistration:
    """What the gate needs of a registered agent that asks for work; `serves` None is all users."""

    agent_id: str
    pool: str
    serves: UserId | None
    types: Sequence[str]
    is_draining: bool
    claim_ttl: timedelta
    lease: timedelta


def _offered(agent: PullAgentDescription, *, has_address: bool) -> set[str]:
    """Return the capabilities of an agent; only the service says which runner it is."""
    named = {name for name in agent.capabilities if not name.startswith(RUNNER_PREFIX)}
    return named | {runner_capability(HTTP)} if has_address else named


def register(
    db: Db,
    caller: Caller,
    agent: PullAgentDescription,
    caps: AgentCaps = DEFAULT_CAPS,
    *,
    has_address: bool = False,
) -> RegisterResult:
    """Register an agent; the same name again updates the same agent.

    Raises InvalidRequest, before anything is written, if the agent declares more types or
    capabilities than `caps` allow, the user has as many other agents as allowed, or the name is
    that of an HTTP agent; with `has_address` it may be.
    """
    caps.check(agent)
    user_id = caller.user_id
    if not has_address:
        _check_no_address(db, user_id, agent.name)
    # Named by the owner's id: a user's name can pass to another user, and the pool must not.
    pool = f"pull:{user_id}/{agent.name}"

    # Checked twice: here, so that no pool is made for an agent that is refused, and under a lock.
    db.atomically(lambda tx: _check_count(tx, user_id, agent.name, caps))
    serves = None if agent.serves_everyone else user_id
    # A transaction of its own: one that holds the row of a pool must not wait for an agent.
    db.run_batch(StatementCall("ensure_pull_pool", {"pool": pool, "serves": serves}))

    def work(tx: Connection) -> RegisterResult:
        lanes.lock(tx, [user_id])
        _check_count(tx, user_id, agent.name, caps)
        registered = tx.execute(
            statement("register_agent"),
            {
                "user_id": user_id,
                "name": agent.name,
                "id": new_agent_id(),
                "pool": pool,
                "capabilities": sorted(_offered(agent, has_address=has_address)),
                "types": sorted(set(agent.types)),
                "models": list(agent.models),
                "slots": agent.slots,
                "budget_usd": agent.budget_usd,
                "claim_ttl": round(agent.claim_ttl.total_seconds()),
                "silence": round(agent.stale_after.total_seconds()),
                **_authorization(caller),
            },
        ).one()
        return RegisterResult(registered.id, registered.is_new)

    registration = db.atomically(work)
    lanes.unskip_lanes(db, pool)
    return registration


def record_poll(db: Db, caller: Caller, agent_id: str) -> AgentRegistration:
    """Record that an agent asked for work, and return what the gate needs to know of it.

    The tokens of its claims are valid as long as the credential of this caller. Raises
    AgentNotFound, AgentOffline if the agent must register again, and InvalidRequest for an HTTP
    agent.
    """
    user_id = caller.user_id
    params = {"id": agent_id, "user_id": user_id, **_authorization(caller)}
    row = db.atomically(lambda tx: tx.execute(statement("touch_own_agent"), params).one_or_none())
    if row is None:
        _check_no_address(db, user_id, _own_agent(db, user_id, agent_id).name)
        raise AgentOffline
    return AgentRegistration(
        agent_id=row.id,
        pool=row.pool,
        serves=None if row.serves is None else UserId(row.serves),
        types=tuple(row.types),
        is_draining=row.status == "draining",
        claim_ttl=timedelta(seconds=row.claim_ttl_seconds),
        lease=timedelta(seconds=row.stale_after_seconds),
    )


def drain(db: Db, user_id: UserId, agent_id: str) -> None:
    """Give an agent no new tasks; it may finish what it runs."""
    pool = _own_agent(db, user_id, agent_id).pool
    params = {"id": agent_id}
    drained = db.atomically(
        lambda tx: tx.execute(statement("drain_own_agent"), params).one_or_none()
    )
    if drained is None:
        raise AgentOffline
    lanes.unskip_lanes(db, pool)


def leave(db: Db, user_id: UserId, agent_id: str) -> None:
    """Remove an agent's slots at once; claims that it still holds end with their leases.

    The driver gives back what an HTTP agent holds, and forgets its address.
    """
    params = {"user_id": user_id, "name": _own_agent(db, user_id, agent_id).name}
    db.atomically(lambda tx: tx.execute(statement("remove_http_agent"), params))
    presence.leave(db, agent_id)


def _check_count(tx: Connection, user_id: UserId, name: str, caps: AgentCaps) -> None:
    """Raise InvalidRequest if the user has as many other agents, or names of agents, as allowed."""
    others = tx.execute(
        statement("count_other_agents"),
        {"user_id": user_id, "name": name, "limit": caps.names + 1},
    ).one()
    if others.online >= caps.agents:
        legal = f"at most {caps.agents} agents online; remove one with DELETE /agents/ID first"
        raise InvalidRequest("name", f"would be agent {others.online + 1}", legal=legal)
    if others.names >= caps.names:
        legal = f"at most {caps.names} names; use the name of an agent that is offline"
        raise InvalidRequest("name", "is one name too many", legal=legal)


def _authorization(caller: Caller) -> dict[str, object]:
    return {"authorized_by": caller.credential, "authorized_until": caller.ends_at}


def _check_no_address(db: Db, user_id: UserId, name: str) -> None:
    """Raise InvalidRequest if the agent of this name is an HTTP agent.

    Only the driver claims for one: a task that somebody else claimed would be sent to it as well.
    """
    params = {"user_id": user_id, "name": name}
    if db.atomically(lambda tx: tx.execute(statement("is_http_agent"), params).scalar_one()):
        raise InvalidRequest(
            "name",
            f"{name!r} is an HTTP agent, for which the agent driver claims",
            legal="another name, or first DELETE /agents/ID",
        )


def _own_agent(db: Db, user_id: UserId, agent_id: str) -> Row[Any]:
    params = {"id": agent_id, "user_id": user_id}
    row = db.atomically(lambda tx: tx.execute(statement("own_agent"), params).one_or_none())
    if row is None:
        raise AgentNotFound
    return row
