"""Quick work after quick work: a slot that has settled its bundle asks for the next one itself.

The round over the dispatcher, Redis and Celery costs more than a bundle of quick tasks. The gate
is the same, so nobody is served sooner than fairness says; what is claimed here is started in the
same transaction, and a process that dies leaves nothing claimed that nobody runs.
"""

import time
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.domain.claims import Claim, Run
from app.faults import fault
from app.gate.claim import Terms, claim_next
from app.outcome.start import begin
from app.store.db import DatabaseUnreachable
from app.telemetry import Event, emit
from workers.child import House
from workers.identity import WORKER_ID
from workers.settling import UNANSWERED_SECONDS, give_up_by
from workers.shutdown import DRAIN

# Then Celery has its process back, to look after it and to show that it goes on.
LONGEST_SECONDS: Final = 10.0


class Refill:
    """Follows one message: the bundles its slot takes after it, for a while."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._terms = Terms.of(house.settings)
        self._until = time.monotonic() + LONGEST_SECONDS
        self._asked: list[Claim] = []

    def next(self, bundle: UUID | None) -> list[Run]:
        """Claim and start the next runs for the slot of a settled bundle; none if it is not due."""
        if bundle is None or DRAIN.begun or time.monotonic() > self._until:
            return []
        try:
            runs, idle = self._house.db.atomically(lambda tx: self._take(tx, bundle))
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            emit(Event.DATABASE_UNREACHABLE, error=error)
            give_up_by(self._house.db, self._asked, deadline=time.monotonic() + UNANSWERED_SECONDS)
            return []
        fault("refill.after_commit")
        if runs and idle:
            # Others could take some of what this slot found.
            self._house.waker.nudge()
        return runs

    def _take(self, tx: Connection, bundle: UUID) -> tuple[list[Run], int]:
        settings = self._house.settings
        self._asked = []
        taken = claim_next(tx, settings.pool, agent=WORKER_ID, bundle=bundle, terms=self._terms)
        if not taken.claims:
            return [], taken.idle
        # Kept in case the commit brings no answer: it may have counted.
        self._asked = [claimed.claim for claimed in taken.claims]
        lease = timedelta(seconds=settings.lease_seconds)
        runs = begin(tx, self._asked, holder=WORKER_ID, lease=lease)
        fault("refill.before_commit")
        return runs, taken.idle
