"""Quick work after quick work: a slot that settles quick tasks takes the next ones with it.

The round over the dispatcher, Redis and Celery costs more than the quick tasks themselves. The gate
is the same, so nobody is served sooner than fairness says. Settling, claiming and starting are one
transaction: the slot passes from task to task and is never seen free in between, and a
process that dies leaves nothing claimed that nobody runs.
"""

import time
from datetime import timedelta
from typing import Self
from uuid import uuid4

from sqlalchemy import Connection

from app.domain.claims import Run
from app.faults import fault
from app.gate.claim import Begun, Terms, take_next
from workers.child import House
from workers.identity import WORKER_ID
from workers.settling import UNANSWERED_SECONDS, give_up_by
from workers.shutdown import DRAIN


class Refill:
    """Follows one message: what its slot takes after it, for a while."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._terms = Terms.of(house.settings)
        # Then Celery has its process back, to look after it and to show that it goes on.
        self._until = time.monotonic() + house.settings.refill_seconds
        self._bundle = uuid4()
        self._next = Begun()
        self._confirmed = False
        self.began = 0.0

    def after(self, run: Run, began: float) -> Self | None:
        """Get ready to follow runs, the last of them begun then; None if it ends here."""
        now = time.monotonic()
        was_quick = now - began < self._house.settings.bundle_seconds
        if not was_quick or now > self._until or DRAIN.begun:
            return None
        # A bundle goes by the message's name, under which Celery can be asked to end it.
        self._bundle = run.bundle or self._bundle
        return self

    def claim(self, tx: Connection) -> None:
        """Claim and begin the next runs in the transaction that settles the last ones."""
        settings = self._house.settings
        # Before the start is requested: the leases count from some moment after this.
        self.began = time.monotonic()
        self._next = Begun()
        self._next = take_next(
            tx,
            settings.pool,
            agent=WORKER_ID,
            bundle=self._bundle,
            terms=self._terms,
            lease=timedelta(seconds=settings.lease_seconds),
        )
        fault("refill.before_commit")

    def confirm(self) -> None:
        """Hear that the transaction was committed."""
        self._confirmed = True

    def take(self) -> list[Run]:
        """Return the next runs, none if it ends here."""
        begun, self._next = self._next, Begun()
        confirmed, self._confirmed = self._confirmed, False
        if not confirmed:
            # The transaction brought no answer, but it may have counted.
            claims = [run.claim for run in begun.runs]
            give_up_by(self._house.db, claims, deadline=time.monotonic() + UNANSWERED_SECONDS)
            return []
        if begun.runs:
            fault("refill.after_commit")
            if begun.idle:
                # Others could take some of what this slot found.
                self._house.waker.nudge()
        return list(begun.runs)
