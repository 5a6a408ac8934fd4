"""What every request may use: the settings, the database and the bell that wakes dispatchers."""

from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from anyio import CapacityLimiter
from fastapi import Depends, Request

from overnight_server.api.http.rate_limit import Rates
from overnight_server.control.keys import Caller
from overnight_server.event_log.feed import Feed
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.wakeups.agent_long_poll import AgentLongPoll


class Verifier(Protocol):
    """Whoever can tell a good token from a bad one."""

    def caller(self, db: Db, token: str) -> Caller | None:
        """Return whom a token was made out to, or None if it opens nothing."""


@dataclass
class Parts:
    """The parts one API process is made of; each request has a copy of its own.

    `db` finds nothing until the caller is known, and then only what is the caller's. `admin_db`
    knows no walls: the routes of admins use it, and nobody else. Nor does `gate_db`, through which
    agents outside register and claim: the gate must see everybody's work. `claim_places` is how
    many do so at once; the others wait without a thread.
    """

    settings: Settings
    db: Db
    feed: Feed
    admin_db: Db
    gate_db: Db
    bell: AgentLongPoll
    claim_places: CapacityLimiter
    tokens: Verifier | None = None
    rates: Rates | None = None

    def serve(self, caller: Caller) -> None:
        """Serve this caller from now on, and nobody else."""
        self.db = self.db.acting_for(caller.served)
        self.admin_db = self.admin_db.acting_for(caller.served)
        self.gate_db = self.gate_db.acting_for(caller.served)


def parts(request: Request) -> Parts:
    """Return the parts of the process that serves this request."""
    found: Parts = request.app.state.parts
    return replace(found)


Use = Annotated[Parts, Depends(parts)]
