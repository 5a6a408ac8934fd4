"""What a route gets injected: settings, database connections, event feed, rate limits."""

from dataclasses import dataclass, field
from typing import Annotated, Protocol
from uuid import UUID

from anyio import CapacityLimiter
from fastapi import Depends, Request

from overnight_server.api.http.expensive_calls import ExpensiveCalls
from overnight_server.api.http.known_keys import KnownKeys
from overnight_server.api.http.log_throttle import LogThrottle
from overnight_server.api.http.rate_limit import RateLimiter
from overnight_server.api.http.request_memory import RequestMemory
from overnight_server.artifact_store.store import ArtifactStore
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import UserId
from overnight_server.event_log.feed import Feed
from overnight_server.forecast.simulation_process import SimulationProcess
from overnight_server.insight.known_types import KnownTypes
from overnight_server.settings import Settings
from overnight_server.store.db import ActingUser, Db
from overnight_server.wakeups.agent_long_poll import AgentLongPoll
from overnight_server.wakeups.log_feed import LogFeed

NOBODY = ActingUser(UserId(UUID(int=0)))


class TokenVerifier(Protocol):
    """Verifies JSON Web Tokens."""

    def caller(self, db: Db, token: str) -> Caller | None:
        """Return the user for whom a token was issued, or None if the token is not valid."""


@dataclass
class Dependencies:
    """What one API process shares among its requests; each request gets its own copy.

    `db` is limited by row-level security: it reads nothing before the caller is authenticated,
    and then only the caller's rows. `admin_db` is for the admin routes and reads the rows of all
    users. So does `gate_db`, through which pull agents register and claim, because the gate must
    see the work of all users. `claim_limiter` is how many agents may claim at once; the others
    wait without occupying a thread. `request_memory` limits the bodies of requests in progress.
    `expensive` has the threads and connections of routes that compute for long, and
    `simulation_process` computes the simulations of forecasts.
    """

    settings: Settings
    db: Db
    feed: Feed
    log_feed: LogFeed
    admin_db: Db
    gate_db: Db
    agent_long_poll: AgentLongPoll
    claim_limiter: CapacityLimiter
    known_types: KnownTypes
    request_memory: RequestMemory
    expensive: ExpensiveCalls
    simulation_process: SimulationProcess
    artifact_store: ArtifactStore | None = None
    token_verifier: TokenVerifier | None = None
    rate_limiter: RateLimiter | None = None
    known_keys: KnownKeys = field(default_factory=KnownKeys)
    log_throttle: LogThrottle = field(default_factory=LogThrottle)
    #: The user for whom the transactions of this request run, once authenticated.
    acting_user: ActingUser = NOBODY

    @property
    def caller_name(self) -> str:
        """The user for whom the memory and the expensive calls of this request are counted."""
        return str(self.acting_user.user_id)

    def act_for(self, user: ActingUser) -> None:
        """Limit the database connections of this request to the authenticated user."""
        self.acting_user = user
        self.db = self.db.acting_for(user)
        self.admin_db = self.admin_db.acting_for(user)
        self.gate_db = self.gate_db.acting_for(user)


# A dependency without IO is a coroutine function: FastAPI calls any other one in a thread.
async def dependencies(request: Request) -> Dependencies:
    """Return this request's copy of the process's dependencies, which the route has made."""
    copied: Dependencies = request.state.dependencies
    return copied


Injected = Annotated[Dependencies, Depends(dependencies)]
